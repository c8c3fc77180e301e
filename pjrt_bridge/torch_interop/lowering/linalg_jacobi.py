"""Eigenvalues of Hermitian matrices and singular values, by rotations of pairs of columns.

Jacobi's method in parallel (Brent and Luk, "The solution of singular-value and symmetric eigenvalue
problems on multiprocessor arrays", 1985): a sweep of n - 1 rounds meets every pair once, and each
round turns n / 2 pairs at a time; then the columns move on to other partners. 6 to 10 sweeps reach
the precision of the element type; the bound is 30.

Cost: a round reads and writes the matrix a few times, so n columns take about 8 n rounds of n^2
elements: good for tens and hundreds of columns, and for many matrices at once; LAPACK's way by
tridiagonal matrices takes fewer operations, but one after the other. Accuracy: residuals and
orthogonality of a few eps times the norm, as LAPACK's; small singular values are at least as
accurate. A matrix that holds infinities or NaN gives NaN.
"""

from __future__ import annotations

from dataclasses import dataclass

from pjrt_bridge.stablehlo.builder import Value
from pjrt_bridge.torch_interop.lowering import linalg as la
from pjrt_bridge.torch_interop.lowering import linalg_qr as householder
from pjrt_bridge.torch_interop.lowering.context import Context
from pjrt_bridge.torch_interop.lowering.shape import conjugate, part

_SWEEPS = 30


@dataclass(frozen=True)
class Spectrum:
    """`a @ vectors == vectors * values`: values (batch, n) ascend; vectors (batch, n, n)."""

    values: Value
    vectors: Value | None


@dataclass(frozen=True)
class Singular:
    """`a == left * values @ right^H`: values (batch, count) descend, vectors are columns."""

    left: Value | None
    values: Value
    right: Value | None


# -- pairs --------------------------------------------------------------------------------------


def _halves(c: Context, x: Value) -> tuple[Value, Value]:
    middle = x.shape[2] // 2
    return part(c, x, 2, 0, middle), part(c, x, 2, middle, 2 * middle)


def _turned(c: Context, x: Value, cosine: Value, sine: Value) -> Value:
    """Each column of the left half and its partner in the right half, turned.

    The angles are (batch, 1, half), in the element type of x.
    """
    b = c.b
    left, right = _halves(c, x)
    cosine, sine = (c.broadcast(v, left.shape) for v in (cosine, sine))
    first = b.subtract(b.multiply(cosine, left), b.multiply(conjugate(c, sine), right))
    second = b.add(b.multiply(sine, left), b.multiply(cosine, right))
    return b.concatenate([first, second], 2)


def _moved(c: Context, x: Value, dim: int) -> Value:
    """Columns (or rows) with their next partners: all but the first go round."""
    half = x.shape[dim] // 2
    if half == 1:
        return x
    pieces = [(0, 1), (half, half + 1), (1, half - 1), (half + 1, 2 * half), (half - 1, half)]
    return c.b.concatenate([part(c, x, dim, *ends) for ends in pieces], dim)


def _angles(
    c: Context, first: Value, second: Value, shared: Value, chosen: Value
) -> tuple[Value, Value, Value]:
    """What makes `[[first, shared], [conj(shared), second]]` diagonal, where `chosen`.

    Returns:
        cosine and sine in the type of `shared`, and by how much `first` falls and `second` grows.
    """
    b = c.b
    size = b.abs(shared)
    divisor = la.where(c, chosen, size, 1)
    two = c.full(size.shape, 2, size.dtype)
    one = c.full(size.shape, 1, size.dtype)
    slope = b.divide(b.divide(b.subtract(second, first), divisor), two)
    steep = b.add(b.abs(slope), b.sqrt(b.add(one, b.multiply(slope, slope))))
    falling = b.compare(slope, c.full(slope.shape, 0, slope.dtype), "LT")
    tangent = b.divide(b.select(falling, b.negate(one), one), steep)
    tangent = la.where(c, chosen, tangent, 0)
    cosine = b.divide(one, b.sqrt(b.add(one, b.multiply(tangent, tangent))))
    phase = b.divide(shared, la.as_type(c, divisor, shared.dtype))
    sine = b.multiply(la.as_type(c, b.multiply(tangent, cosine), shared.dtype), phase)
    return la.as_type(c, cosine, shared.dtype), sine, b.multiply(tangent, size)


def _unit(c: Context, a: Value) -> tuple[Value, Value]:
    """Matrices divided by their largest magnitudes, and these, real (batch, 1, 1).

    A matrix that holds infinities or NaN becomes one of NaN.
    """
    b = c.b
    largest = b.reduce_max(b.abs(a), (1, 2))
    zero = b.compare(largest, c.full(largest.shape, 0, largest.dtype), "EQ")
    scale = c.reshape(la.where(c, b.not_(zero), largest, 1), (a.shape[0], 1, 1))
    known = b.is_finite(scale)
    scale = la.where(c, known, scale, float("nan"))
    return b.divide(a, c.broadcast(la.as_type(c, scale, a.dtype), a.shape)), scale


def _column(c: Context, x: Value) -> Value:
    """A vector for each matrix, as a row: (batch, 1, n)."""
    return c.reshape(x, (x.shape[0], 1, x.shape[1]))


def _ordered(c: Context, keys: Value) -> tuple[Value, Value]:
    """Ascending keys (batch, n), and where they were."""
    ascending, order = c.b.sort(
        [keys, la.numbered(c, keys.shape, 1)],
        1,
        lambda left, right: c.b.compare(left[0], right[0], "LT"),
        stable=True,
    )
    return ascending, order


# -- Hermitian matrices -------------------------------------------------------------------------


def hermitian(c: Context, a: Value, *, vectors: bool) -> Spectrum:
    """Eigenvalues, and eigenvectors if asked for, of (batch, n, n), all of which is read."""
    b = c.b
    batch, size, _ = a.shape
    if 0 in a.shape:
        empty = c.full((batch, size), 0, la.real_type(a.dtype))
        return Spectrum(empty, a if vectors else None)
    a, scale = _unit(c, a)
    wide = size + size % 2
    a = la.padded(c, a, wide, wide)
    values = b.real(la.diagonal(c, a))
    basis = [la.identity(c, (batch, wide, wide), a.dtype)] if vectors else []
    norm = b.sqrt(b.reduce_sum(la.magnitude_squared(c, a), (1, 2)))
    bound = b.multiply(norm, c.full(norm.shape, la.epsilon(a.dtype), norm.dtype))

    def unfinished(state: la.State) -> Value:
        off = la.where(c, la.diagonal_relation(c, a.shape, "NE"), state[1], 0)
        rest = b.sqrt(b.reduce_sum(la.magnitude_squared(c, off), (1, 2)))
        more = b.reduce_or(b.compare(rest, bound, "GT"), (0,))
        return b.and_(more, la.against(c, state[0], "LT", _SWEEPS))

    def sweep(state: la.State) -> tuple[Value, ...]:
        after = la.repeat(c, wide - 1, state[1:], lambda _, *inner: _turn_both(c, *inner))
        return (b.add(state[0], la.integer(c, 1)), *after)

    _, _, values, *basis = b.while_((la.integer(c, 0), a, values, *basis), unfinished, sweep)
    values, order = _ordered(c, part(c, values, 1, 0, size))
    values = la.scaled(c, values, c.reshape(scale, (batch, 1)))
    found = [la.take_columns(c, la.cropped(c, v, size, size), order) for v in basis]
    return Spectrum(values, found[0] if found else None)


def _turn_both(c: Context, a: Value, values: Value, *basis: Value) -> tuple[Value, ...]:
    """One round: rows and columns turned and moved on; `values` is the diagonal."""
    b = c.b
    half = a.shape[1] // 2
    shared = la.diagonal(c, part(c, part(c, a, 1, 0, half), 2, half, 2 * half))
    chosen = b.compare(shared, c.full(shared.shape, 0, shared.dtype), "NE")
    first, second = part(c, values, 1, 0, half), part(c, values, 1, half, 2 * half)
    cosine, sine, shift = _angles(c, first, second, shared, chosen)
    cosine, sine = _column(c, cosine), _column(c, sine)
    values = b.concatenate([b.subtract(first, shift), b.add(second, shift)], 1)
    a = _turned(c, la.adjoint(c, _turned(c, a, cosine, sine)), cosine, sine)
    # What rounding left of the pairs' own elements would never go away.
    row, column = la.numbered(c, a.shape, 1), la.numbered(c, a.shape, 2)
    distance = b.abs(b.subtract(row, column))
    a = la.where(c, la.against(c, distance, "NE", half), a, 0)
    return (
        _moved(c, _moved(c, a, 1), 2),
        _moved(c, values, 1),
        *(_moved(c, _turned(c, v, cosine, sine), 2) for v in basis),
    )


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
                beyond = la.against(c, la.numbered(c, left.shape, 2), "GE", columns)
                left = c.b.select(beyond, la.identity(c, left.shape, a.dtype), left)
            left = householder.apply(c, compact, factors, left, adjoint=False)
    return Singular(left, la.scaled(c, values, c.reshape(scale, (batch, 1))), right)


def _square(c: Context, a: Value, vectors: bool) -> tuple[Value | None, Value, Value | None]:
    """Left vectors, singular values and right vectors of (batch, n, n), at most 1 in magnitude."""
    b = c.b
    batch, size, _ = a.shape
    wide = size + size % 2
    a = la.padded(c, a, size, wide)
    basis = [la.identity(c, (batch, wide, wide), a.dtype)] if vectors else []
    tolerance = max(8.0, size**0.5) * la.epsilon(a.dtype)
    worst = c.full((), 1, la.real_type(a.dtype))

    def unfinished(state: la.State) -> Value:
        more = b.compare(state[1], c.full((), tolerance, worst.dtype), "GT")
        return b.and_(more, la.against(c, state[0], "LT", _SWEEPS))

    def sweep(state: la.State) -> tuple[Value, ...]:
        zero = c.full((), 0, worst.dtype)
        after = la.repeat(
            c, wide - 1, (zero, *state[2:]), lambda _, *inner: _turn_columns(c, *inner)
        )
        return (b.add(state[0], la.integer(c, 1)), *after)

    _, _, a, *basis = b.while_((la.integer(c, 0), worst, a, *basis), unfinished, sweep)
    a = part(c, a, 2, 0, size)
    lengths = b.sqrt(b.reduce_sum(la.magnitude_squared(c, a), (1,)))
    falling, order = _ordered(c, b.negate(lengths))
    values = b.negate(falling)
    if not basis:
        return None, values, None
    # The columns are orthogonal but may be 0; reflectors make a basis of them in any case.
    compact, factors = householder.factor(c, la.take_columns(c, a, order))
    corner = b.real(la.diagonal(c, compact))
    negative = b.compare(corner, c.full(corner.shape, 0, corner.dtype), "LT")
    sign = la.where(c, negative, c.full(corner.shape, -1, corner.dtype), 1)
    left = la.scaled(c, householder.orthogonal(c, compact, factors, size), _column(c, sign))
    return left, values, la.take_columns(c, la.cropped(c, basis[0], size, size), order)


def _turn_columns(c: Context, worst: Value, a: Value, *basis: Value) -> tuple[Value, ...]:
    """One round; `worst` is the largest cosine between the columns of a pair so far."""
    b = c.b
    left, right = _halves(c, a)
    first, second = (b.reduce_sum(la.magnitude_squared(c, v), (1,)) for v in (left, right))
    shared = b.reduce_sum(b.multiply(conjugate(c, left), right), (1,))
    # Columns that are lost in the rounding of all others need no angle.
    negligible = la.epsilon(a.dtype) ** 4
    known = b.compare(b.minimum(first, second), c.full(first.shape, negligible, first.dtype), "GT")
    lengths = b.multiply(b.sqrt(first), b.sqrt(second))
    cosines = b.divide(b.abs(shared), la.where(c, known, lengths, 1))
    cosines = la.where(c, known, cosines, 0)
    small = c.full(cosines.shape, la.epsilon(a.dtype) / 2, cosines.dtype)
    chosen = b.and_(known, b.compare(cosines, small, "GT"))
    cosine, sine, _ = _angles(c, first, second, shared, chosen)
    cosine, sine = _column(c, cosine), _column(c, sine)
    worst = b.maximum(worst, b.reduce_max(cosines, (0, 1)))
    return worst, *(_moved(c, _turned(c, v, cosine, sine), 2) for v in (a, *basis))
