"""Eigenvalues and eigenvectors of general square matrices.

ATen semantics kept: both are complex; vectors are columns of norm 1 whose largest element is real.
Eigenvalues have the order in which QR iterations find them, which need not be LAPACK's. Of a real
matrix, imaginary parts within the rounding errors of the matrix are 0.

Where a matrix holds infinities or NaN, eager raises an exception; here all results are NaN.
"""

from __future__ import annotations

import math

from pjrt_bridge import dtypes
from pjrt_bridge.stablehlo.builder.builder import Value
from pjrt_bridge.torch_interop.lowering.context import Context, OptionalValues
from pjrt_bridge.torch_interop.lowering.linalg import matrices as la
from pjrt_bridge.torch_interop.lowering.linalg.schur import decompose
from pjrt_bridge.torch_interop.lowering.registry import NotLowerable, lowering
from pjrt_bridge.torch_interop.lowering.shaping.shape import conjugate

_MOST = 256
"""Columns. Sweeps of larger matrices take some hundred times as long as LAPACK on a CPU."""


@lowering("aten.linalg_eig.default")
def eig(c: Context, a: Value) -> OptionalValues:
    """Eigenvalues and eigenvectors."""
    if 0 in a.shape:
        return c.zeros(0), c.zeros(1)
    return c.promised(*_eigen(c, a))


@lowering("aten._linalg_eigvals.default", "aten.linalg_eigvals.default")
def eigvals(c: Context, a: Value) -> Value:
    """Eigenvalues."""
    if 0 in a.shape:
        return c.zeros(0)
    return c.reshape(_eigen(c, a)[0], c.output.shape)


def _eigen(c: Context, a: Value) -> tuple[Value, Value]:
    b = c.b
    size = a.shape[-1]
    if size > _MOST:
        raise NotLowerable(f"spectra of matrices with {size} columns (more than {_MOST})")
    real = not a.dtype.is_complex
    dtype = dtypes.of(f"complex{2 * a.dtype.bits}") if real else a.dtype
    matrices = la.as_type(c, la.batched(c, a), dtype)
    largest = b.reduce_max(b.abs(matrices), (1, 2))
    some = b.compare(largest, c.full(largest.shape, 0, largest.dtype), "NE")
    largest = la.where(c, some, largest, 1)
    found = decompose(c, la.divided(c, matrices, c.reshape(largest, (largest.size, 1, 1))))
    values = _diagonal(c, found.triangle)
    if real:
        bound = c.full(values.shape, 4 * size * la.epsilon(dtype), largest.dtype)
        imag = b.imag(values)
        imag = la.where(c, b.compare(b.abs(imag), bound, "GT"), imag, 0)
        values = b.complex_(b.real(values), imag)
    vectors = la.product(c, found.vectors, _triangle_vectors(c, found.triangle))
    values = la.scaled(c, values, c.reshape(largest, (largest.size, 1)))
    finite = c.reshape(b.is_finite(largest), (largest.size, 1, 1))
    return values, la.where(c, finite, _normalized(c, vectors), math.nan)


def _diagonal(c: Context, x: Value) -> Value:
    """The diagonals, with their NaN."""
    on = la.diagonal_relation(c, x.shape, "EQ")
    return c.b.reduce_sum(la.where(c, on, x, 0), (2,))


def _triangle_vectors(c: Context, t: Value) -> Value:
    """The eigenvectors of upper triangles, as columns, by substitution from the last row on.

    Equal eigenvalues are taken as ones that differ by rounding errors. Columns are scaled down
    where they grow, so that those of defective matrices do not overflow.
    """
    b = c.b
    batch, size, _ = t.shape
    real = la.real_type(t.dtype)
    values = c.reshape(_diagonal(c, t), (batch, 1, size))
    least = c.full((batch, 1, size), la.epsilon(t.dtype), real)
    column = la.iota(c, (batch, 1, size), 2)

    def step(i: Value, x: Value) -> tuple[Value, ...]:
        at = b.subtract(la.integer(c, size - 1), i)
        row = la.window(c, t, at, None, 1, size)
        corner = c.broadcast(la.window(c, row, None, at, 1, 1), values.shape)
        gap = b.subtract(values, corner)
        wide = b.compare(b.abs(gap), least, "GE")
        gap = b.select(wide, gap, la.as_type(c, least, t.dtype))
        solved = b.divide(la.product(c, row, x), gap)
        solved = la.where(c, la.compare_to(c, column, "GT", at), solved, 0)
        solved = la.where(c, la.compare_to(c, column, "NE", at), solved, 1)
        x = la.put(c, x, solved, at, None)
        most = b.reduce_max(b.abs(x), (1,))
        grown = b.compare(most, c.full(most.shape, 1 / la.epsilon(t.dtype), real), "GT")
        most = c.reshape(la.where(c, grown, most, 1), (batch, 1, size))
        return (la.divided(c, x, most),)

    (x,) = la.repeat(c, size, (c.full(t.shape, 0, t.dtype),), step)
    return x


def _normalized(c: Context, x: Value) -> Value:
    """Columns of norm 1 whose largest element is real and positive."""
    b = c.b
    batch, _, size = x.shape
    magnitude = b.abs(x)
    most = c.reshape(b.reduce_max(magnitude, (1,)), (batch, 1, size))
    x = la.divided(c, x, most)
    square = b.reduce_sum(la.magnitude_squared(c, x), (1,))
    x = la.divided(c, x, c.reshape(b.sqrt(square), most.shape))
    first = la.first_true(c, b.compare(magnitude, c.broadcast(most, x.shape), "EQ"), 1)
    at = b.compare(la.iota(c, x.shape, 1), b.broadcast_in_dim(first, x.shape, (0, 2)), "EQ")
    largest = c.reshape(b.reduce_sum(la.where(c, at, x, 0), (1,)), most.shape)
    phase = la.divided(c, conjugate(c, largest), b.abs(largest))
    return b.multiply(x, c.broadcast(phase, x.shape))
