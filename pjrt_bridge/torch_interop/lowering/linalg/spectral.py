"""Eigenvalues of Hermitian matrices, singular values, and the pseudo-inverse that they give.

ATen semantics kept: eigenvalues ascend, singular values descend; of a Hermitian matrix one triangle
is read (`UPLO`), and the imaginary parts of its diagonal are not. Vectors are determined up to
their sign or phase (of repeated values, up to their space), so they are not those of LAPACK.

Where a matrix holds infinities or NaN, eager raises an exception; here all results are NaN.
"""

from __future__ import annotations

from pjrt_bridge import dtypes
from pjrt_bridge.stablehlo.builder.builder import Value
from pjrt_bridge.torch_interop.lowering.context import Context, OptionalValues
from pjrt_bridge.torch_interop.lowering.linalg import jacobi
from pjrt_bridge.torch_interop.lowering.linalg import matrices as la
from pjrt_bridge.torch_interop.lowering.registry import NotLowerable, lowering

_FLOAT64 = dtypes.of("float64")


_MOST = 256
"""Columns. Of larger matrices the rotations take some hundred times as long as LAPACK on a CPU."""


def _batched(c: Context, a: Value) -> Value:
    size = min(a.shape[-2:])
    if size > _MOST:
        raise NotLowerable(f"spectra of matrices with {size} columns (more than {_MOST})")
    return la.batched(c, a)


def _completed(c: Context, a: Value, *, upper: bool) -> Value:
    """The Hermitian matrix of which one triangle is given."""
    triangle = la.triangle(c, a, upper=upper)
    on = la.diagonal_relation(c, a.shape, "EQ")
    line = la.as_type(c, c.b.real(a), a.dtype)
    return c.b.select(on, line, c.b.add(triangle, la.adjoint(c, triangle)))


@lowering("aten._linalg_eigh.default")
def eigh(c: Context, a: Value, uplo: str = "L", compute_v: bool = True) -> OptionalValues:
    """Eigenvalues, and eigenvectors unless `compute_v` is False."""
    matrices = _completed(c, _batched(c, a), upper=uplo.upper() == "U")
    found = jacobi.hermitian(c, matrices)
    return c.promised(found.values, found.vectors if compute_v else c.zeros(1))


@lowering("aten._linalg_svd.default")
def svd(
    c: Context,
    a: Value,
    full_matrices: bool = False,
    compute_uv: bool = True,
    *,
    driver: str | None = None,
) -> OptionalValues:
    """Left vectors, singular values and the adjoint of the right vectors."""
    found = jacobi.singular(c, _batched(c, a), vectors=compute_uv, full=full_matrices)
    if found.left is None or found.right is None:
        return c.promised(c.zeros(0), found.values, c.zeros(2))
    return c.promised(found.left, found.values, la.adjoint(c, found.right))


@lowering("aten.linalg_pinv.atol_rtol_tensor")
def pinv(
    c: Context,
    a: Value,
    *,
    atol: Value | None = None,
    rtol: Value | None = None,
    hermitian: bool = False,
) -> Value:
    """The inverse where singular values exceed `max(atol, rtol * largest)`, else 0.

    Without `rtol` it is eps times the larger dimension, or 0 where `atol` is positive. Bounds are
    broadcast over the leading dimensions and compared in float64, as in ATen.
    """
    b = c.b
    if 0 in a.shape:
        return c.zeros(0)
    matrices = _batched(c, a)
    batch = matrices.shape[0]
    if hermitian:
        spectrum = jacobi.hermitian(c, _completed(c, matrices, upper=False))
        found = jacobi.Singular(spectrum.vectors, spectrum.values, spectrum.vectors)
    else:
        found = jacobi.singular(c, matrices, vectors=True)
    values, left, right = found.values, found.left, found.right
    assert left is not None
    assert right is not None
    size = b.abs(values)

    def limit(given: Value) -> Value:
        wide = c.broadcast(c.cast(given, _FLOAT64), a.shape[:-2])
        return c.reshape(wide, (batch,))

    default = la.epsilon(a.dtype) * max(a.shape[-2:])
    absolute = c.full((batch,), 0, _FLOAT64) if atol is None else limit(atol)
    if rtol is not None:
        relative = limit(rtol)
    else:
        given = b.compare(absolute, c.full((batch,), 0, _FLOAT64), "GT")
        relative = la.where(c, b.not_(given), c.full((batch,), default, _FLOAT64), 0)
    wide = c.cast(size, _FLOAT64)
    bound = b.maximum(absolute, b.multiply(relative, b.reduce_max(wide, (1,))))
    large = b.compare(wide, c.spread(bound, wide.shape, (1,)), "GT")
    inverse = b.divide(c.full(values.shape, 1, values.dtype), la.where(c, large, values, 1))
    inverse = la.where(c, large, inverse, 0)
    weighted = la.scaled(c, right, c.reshape(inverse, (batch, 1, inverse.shape[1])))
    return c.reshape(la.product(c, weighted, la.adjoint(c, left)), c.output.shape)
