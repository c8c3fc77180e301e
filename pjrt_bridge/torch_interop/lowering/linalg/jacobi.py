"""Eigenvalues of Hermitian matrices and singular values, by rotations of pairs of vectors.

One-sided Jacobi (Hestenes, 1958): rows are turned in pairs, all of a round at once, until they are
orthogonal to each other. A sweep of n rounds meets every pair once: neighbours are turned and
exchanged, so that each row meets all others (Stewart, "A Jacobi-like algorithm for computing
the Schur decomposition of a nonhermitian matrix", 1985). 6 to 10 sweeps reach the precision of the
element type; the bound is 30. The eigenvectors of a Hermitian matrix are the left singular vectors
of the Cholesky factor of the matrix plus a multiple of 1 that makes it positive definite, refined
for the matrix itself.

Cost: n rows take about 8 n rounds, each of which reads the matrix twice and writes it once: suited
to tens and hundreds of rows, and to many matrices at once. LAPACK's reductions to bidiagonal and
tridiagonal matrices take fewer operations, but sequential ones. Accuracy: residuals and
orthogonality of a few eps times the norm, as LAPACK's. A matrix that holds infinities or NaN gives
NaN.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from pjrt_bridge.stablehlo.builder.builder import Value
from pjrt_bridge.torch_interop.lowering.context import Context
from pjrt_bridge.torch_interop.lowering.linalg import matrices as la
from pjrt_bridge.torch_interop.lowering.linalg import qr as householder
from pjrt_bridge.torch_interop.lowering.linalg.factor import cholesky
from pjrt_bridge.torch_interop.lowering.shaping.shape import conjugate, part

_SWEEPS = 30


@dataclass(frozen=True)
class Spectrum:
    """`a @ vectors == vectors * values`: values (batch, n) ascend; vectors (batch, n, n)."""

    values: Value
    vectors: Value


@dataclass(frozen=True)
class Singular:
    """`a == left * values @ right^H`: values (batch, count) descend, vectors are columns."""

    left: Value | None
    values: Value
    right: Value | None


# -- rotations ----------------------------------------------------------------------------------


def _orthogonal(c: Context, rows: Value, measured: int) -> Value:
    """Rows (batch, n, any) turned until their first `measured` elements are orthogonal.

    Their order changes; a last row of zeros stays the last.
    """
    b = c.b
    _, size, width = rows.shape
    wide = size + size % 2
    rows = la.padded(c, rows, wide, width)
    real = la.real_type(rows.dtype)
    tolerance = max(8.0, math.sqrt(measured)) * la.epsilon(rows.dtype)

    def unfinished(state: la.LoopState) -> Value:
        more = b.compare(state[1], c.full((), tolerance, real), "GT")
        return b.and_(more, la.compare_to(c, state[0], "LT", _SWEEPS))

    def rounds(_: Value, worst: Value, rows: Value) -> tuple[Value, ...]:
        rows, cosine = _turned(c, rows, measured)
        worst = b.maximum(worst, cosine)
        if wide > 2:
            inner, cosine = _turned(c, part(c, rows, 1, 1, wide - 1), measured)
            rows = la.put(c, rows, inner, la.integer(c, 1), None)
            worst = b.maximum(worst, cosine)
        return worst, rows

    def sweep(state: la.LoopState) -> tuple[Value, ...]:
        worst, rows = la.repeat(c, wide // 2, (c.full((), 0, real), state[2]), rounds)
        # After a full sweep the rows are in reverse order.
        return b.add(state[0], la.integer(c, 1)), worst, b.reverse(rows, (1,))

    inits = (la.integer(c, 0), c.full((), 1, real), rows)
    return part(c, b.while_(inits, unfinished, sweep)[2], 1, 0, size)


def _turned(c: Context, rows: Value, measured: int) -> tuple[Value, Value]:
    """Rows 0 and 1, 2 and 3, ... turned to be orthogonal and exchanged; the largest cosine."""
    b = c.b
    batch, size, width = rows.shape
    pairs = c.reshape(rows, (batch, size // 2, 2, width))
    seen = part(c, pairs, 3, 0, measured)
    first, second = part(c, seen, 2, 0, 1), part(c, seen, 2, 1, 2)
    before, after = (b.reduce_sum(la.magnitude_squared(c, v), (3,)) for v in (first, second))
    shared = b.reduce_sum(b.multiply(conjugate(c, first), second), (3,))
    # Rows that are smaller than the rounding errors of the others are not rotated.
    negligible = c.full(before.shape, la.epsilon(rows.dtype) ** 4, before.dtype)
    known = b.compare(b.minimum(before, after), negligible, "GT")
    lengths = b.multiply(b.sqrt(before), b.sqrt(after))
    cosines = b.divide(b.abs(shared), la.where(c, known, lengths, 1))
    cosines = la.where(c, known, cosines, 0)
    small = c.full(cosines.shape, la.epsilon(rows.dtype) / 2, cosines.dtype)
    cosine, sine = _angles(c, before, after, shared, b.compare(cosines, small, "GT"))
    own = b.concatenate([sine, b.negate(conjugate(c, sine))], 2)
    own, other = (b.broadcast_in_dim(v, pairs.shape, (0, 1, 2)) for v in (own, cosine))
    turned = b.add(b.multiply(own, pairs), b.multiply(other, b.reverse(pairs, (2,))))
    return c.reshape(turned, rows.shape), b.reduce_max(cosines, (0, 1, 2))


def _angles(
    c: Context, first: Value, second: Value, shared: Value, chosen: Value
) -> tuple[Value, Value]:
    """Cosine and sine that make `[[first, shared], [conj(shared), second]]` diagonal.

    They are in the type of `shared`: 1 and 0 where not `chosen`.
    """
    b = c.b
    divisor = la.where(c, chosen, b.abs(shared), 1)
    two, one = (c.full(divisor.shape, value, divisor.dtype) for value in (2, 1))
    slope = b.divide(b.divide(b.subtract(second, first), divisor), two)
    steep = b.add(b.abs(slope), b.sqrt(b.add(one, b.multiply(slope, slope))))
    falling = b.compare(slope, c.full(slope.shape, 0, slope.dtype), "LT")
    tangent = b.divide(b.select(falling, b.negate(one), one), steep)
    tangent = la.where(c, chosen, tangent, 0)
    cosine = b.divide(one, b.sqrt(b.add(one, b.multiply(tangent, tangent))))
    phase = b.divide(shared, la.as_type(c, divisor, shared.dtype))
    sine = b.multiply(la.as_type(c, b.multiply(tangent, cosine), shared.dtype), phase)
    return la.as_type(c, cosine, shared.dtype), sine


# -- common parts ------------------------------------------------------------------------------


def _unit(c: Context, a: Value) -> tuple[Value, Value]:
    """Matrices divided by their largest magnitudes, and these, real (batch, 1).

    A matrix that holds infinities or NaN becomes one of NaN.
    """
    b = c.b
    largest = b.reduce_max(b.abs(a), (1, 2))
    zero = b.compare(largest, c.full(largest.shape, 0, largest.dtype), "EQ")
    scale = la.where(c, b.not_(zero), largest, 1)
    scale = la.where(c, b.is_finite(scale), scale, math.nan)
    return la.divided(c, a, c.reshape(scale, (a.shape[0], 1, 1))), c.reshape(scale, (a.shape[0], 1))


def _lengths(c: Context, rows: Value) -> Value:
    """(batch, n) of (batch, n, any)."""
    return c.b.sqrt(c.b.reduce_sum(la.magnitude_squared(c, rows), (2,)))


def _ordered(c: Context, keys: Value) -> tuple[Value, Value]:
    """Ascending keys (batch, n), and where they were."""
    ascending, order = c.b.sort(
        [keys, la.iota(c, keys.shape, 1)],
        1,
        lambda left, right: c.b.compare(left[0], right[0], "LT"),
        stable=True,
    )
    return ascending, order


# -- Hermitian matrices -------------------------------------------------------------------------


def hermitian(c: Context, a: Value) -> Spectrum:
    """Eigenvalues and eigenvectors of (batch, n, n), all of which is read."""
    b = c.b
    batch, size, _ = a.shape
    if 0 in a.shape:
        return Spectrum(c.full((batch, size), 0, la.real_type(a.dtype)), a)
    a, scale = _unit(c, a)
    bound = _norm_bound(c, a)
    shift = la.scaled(c, la.identity(c, a.shape, a.dtype), c.reshape(bound, (batch, 1, 1)))
    factor, _ = cholesky(c, b.add(a, shift))
    rows = _orthogonal(c, la.transposed(c, factor), size)
    rows = la.divided(c, rows, c.reshape(_lengths(c, rows), (batch, size, 1)))
    quotients, rows = _refined(c, a, rows)
    values, order = _ordered(c, quotients)
    vectors = la.transposed(c, la.take_rows(c, rows, order))
    return Spectrum(b.multiply(values, c.broadcast(scale, values.shape)), vectors)


def _refined(c: Context, a: Value, rows: Value) -> tuple[Value, Value]:
    """Eigenvalues (batch, n), and rows that are nearer to the eigenvectors.

    One step of Newton's method (Ogita and Aishima, "Iterative refinement for symmetric eigenvalue
    decomposition", 2018): it lacks the rounding errors of the shift. Vectors whose values are so
    near to each other that they determine the space alone are only made orthogonal.
    """
    b = c.b
    batch, size, _ = a.shape
    pairs, real = (batch, size, size), la.real_type(a.dtype)
    half = c.full((1, 1, 1), 0.5, real)
    turned, columns = conjugate(c, rows), la.transposed(c, rows)
    defects = b.subtract(la.identity(c, pairs, a.dtype), la.product(c, turned, columns))
    images = la.product(c, turned, la.product(c, a, columns))
    lengths = b.subtract(c.full((batch, size), 1, real), b.real(la.diagonal(c, defects)))
    values = b.divide(b.real(la.diagonal(c, images)), lengths)
    own, other = c.spread(values, pairs, (2,)), c.spread(values, pairs, (1,))
    coupling = b.add(images, la.scaled(c, la.scaled(c, defects, b.add(own, other)), half))
    # Its rounding errors, divided by gaps, must not differ from one side of the diagonal to the
    # other: the vectors would not be orthogonal.
    coupling = la.scaled(c, b.add(coupling, la.adjoint(c, coupling)), half)
    gaps = b.subtract(own, other)
    small = c.full(pairs, math.cbrt(la.epsilon(a.dtype)) / math.sqrt(size), real)
    known = b.compare(b.abs(coupling), b.multiply(small, b.abs(gaps)), "LT")
    # The changes of the columns are those of the rows transposed.
    turns = la.divided(c, conjugate(c, coupling), la.where(c, known, gaps, 1))
    turns = la.where(c, known, turns, 0)
    changes = b.add(turns, la.scaled(c, la.transposed(c, defects), half))
    first = la.product(c, changes, rows)
    second = la.scaled(c, la.product(c, turns, first), half)
    return values, b.add(rows, b.add(first, second))


def _norm_bound(c: Context, a: Value) -> Value:
    """More than the largest magnitude of an eigenvalue, at most about twice; (batch,).

    The norm of the fourth power is used, to which all eigenvalues contribute.
    """
    b = c.b
    square = la.product(c, a, a)
    largest = b.reduce_max(b.abs(square), (1, 2))
    zero = b.compare(largest, c.full(largest.shape, 0, largest.dtype), "EQ")
    unit = la.where(c, b.not_(zero), largest, 1)
    square = la.divided(c, square, c.reshape(unit, (a.shape[0], 1, 1)))
    fourth = la.product(c, square, square)
    norm = b.sqrt(b.reduce_sum(la.magnitude_squared(c, fourth), (1, 2)))
    bound = b.multiply(b.sqrt(b.sqrt(norm)), b.sqrt(unit))
    return la.where(c, b.not_(zero), b.multiply(bound, c.full(bound.shape, 1.25, bound.dtype)), 1)


# -- singular values ----------------------------------------------------------------------------


def singular(c: Context, a: Value, *, vectors: bool, full: bool = False) -> Singular:
    """Singular values, and vectors if asked for, of (batch, rows, columns).

    Args:
        c: the node's context.
        a: the matrices.
        vectors: whether they are wanted.
        full: complete both sides to orthonormal bases.
    """
    if a.shape[1] < a.shape[2]:
        found = singular(c, la.adjoint(c, a), vectors=vectors, full=full)
        return Singular(found.right, found.values, found.left)
    batch, rows, columns = a.shape
    if 0 in a.shape:
        nothing = c.full((batch, columns), 0, la.real_type(a.dtype))
        if not vectors:
            return Singular(None, nothing, None)
        bases = [(batch, rows, rows if full else columns), (batch, columns, columns)]
        first, second = (la.identity(c, shape, a.dtype) for shape in bases)
        return Singular(first, nothing, second)
    a, scale = _unit(c, a)
    if rows == columns:
        left, values, right = _square(c, a, vectors)
    else:
        compact, factors = householder.factor(c, a)
        core = la.triangle(c, la.cropped(c, compact, columns, columns), upper=True)
        left, values, right = _square(c, core, vectors)
        if left is not None:
            count = rows if full else columns
            left = la.padded(c, left, rows, count)
            if full:
                beyond = la.compare_to(c, la.iota(c, left.shape, 2), "GE", columns)
                left = c.b.select(beyond, la.identity(c, left.shape, a.dtype), left)
            left = householder.apply(c, compact, factors, left, adjoint=False)
    return Singular(left, c.b.multiply(values, c.broadcast(scale, values.shape)), right)


def _square(c: Context, a: Value, vectors: bool) -> tuple[Value | None, Value, Value | None]:
    """Left vectors, singular values and right vectors of (batch, n, n), at most 1 in magnitude."""
    b = c.b
    batch, size, _ = a.shape
    rows = la.transposed(c, a)
    if not vectors:
        lengths = _lengths(c, _orthogonal(c, rows, size))
        return None, b.negate(_ordered(c, b.negate(lengths))[0]), None
    # The rotations of the columns of `a`, applied to the identity, give the right vectors.
    both = b.concatenate([rows, la.identity(c, a.shape, a.dtype)], 2)
    both = _orthogonal(c, both, size)
    rows, right = part(c, both, 2, 0, size), part(c, both, 2, size, 2 * size)
    # Both parts accumulate the same rounding errors.
    grown = _lengths(c, right)
    right = la.divided(c, right, c.reshape(grown, (batch, size, 1)))
    falling, order = _ordered(c, b.negate(b.divide(_lengths(c, rows), grown)))
    columns = la.transposed(c, la.take_rows(c, rows, order))
    # They are orthogonal but may be 0; the Q of a QR factorization completes them to a basis.
    compact, factors = householder.factor(c, columns)
    corner = b.real(la.diagonal(c, compact))
    negative = b.compare(corner, c.full(corner.shape, 0, corner.dtype), "LT")
    sign = la.where(c, negative, c.full(corner.shape, -1, corner.dtype), 1)
    left = householder.orthogonal(c, compact, factors, size)
    left = la.scaled(c, left, c.reshape(sign, (batch, 1, size)))
    return left, b.negate(falling), la.transposed(c, la.take_rows(c, right, order))
