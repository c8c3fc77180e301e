"""Distances between rows, by any norm, and their derivatives.

ATen semantics kept: p = 0 counts the differences that are not 0, p = inf is the largest of them;
the derivative is 0 where a distance is 0, for p < 1 also where a difference is, and for p = inf it
goes to every difference that is as large as the distance. Differences are taken directly, also
where ATen would expand squares into products (many rows, p = 2): more exact, and 0 between equals.
"""

from __future__ import annotations

import math

from pjrt_bridge.stablehlo.builder.builder import Value
from pjrt_bridge.torch_interop.lowering.context import INT64, Context, Scalar, result_type
from pjrt_bridge.torch_interop.lowering.indexing.reading import broadcast_shapes
from pjrt_bridge.torch_interop.lowering.math.norms import norm_over, vector_norm
from pjrt_bridge.torch_interop.lowering.numbers import FLOAT64, Number, minus
from pjrt_bridge.torch_interop.lowering.registry import lowering
from pjrt_bridge.torch_interop.lowering.shaping.slicing import take


@lowering("aten.dist.default")
def dist(c: Context, x: Value, y: Value, p: Scalar = 2) -> Value:
    """The p-norm of all of `x - y`."""
    kind = result_type(x, y)
    shape = broadcast_shapes(x.shape, y.shape)
    left, right = (c.broadcast(c.widen(c.cast(v, kind)), shape) for v in (x, y))
    return vector_norm(c, c.cast(c.b.subtract(left, right), kind), p)


def _norm(c: Context, differences: Value, p: Number) -> Value:
    """The p-norm over the last dimension, which is dropped."""
    return norm_over(c, c.b.abs(differences), (differences.rank - 1,), p)


def _derivative(c: Context, differences: Value, grad: Value, distance: Value, p: Number) -> Value:
    """The gradient of each difference, from that of its distance; all of one shape."""
    b = c.b
    if isinstance(p, Value):
        return _derivative_of_any_norm(c, differences, grad, distance, c.cast(p, FLOAT64))
    zero = c.full(differences.shape, 0, differences.dtype)
    if p == 0:
        return zero
    size, sign = b.abs(differences), b.sign(differences)
    if p == 1:
        return b.multiply(grad, sign)
    if math.isinf(p):
        largest = b.compare(size, distance, "EQ")
        return b.select(largest, b.multiply(grad, sign), zero)
    apart = b.compare(distance, zero, "NE")
    divisor = b.select(apart, distance, c.full(distance.shape, 1, distance.dtype))
    if p == 2:
        return b.select(apart, b.divide(b.multiply(grad, differences), divisor), zero)

    def power(x: Value, exponent: float) -> Value:
        return b.power(x, c.full(x.shape, exponent, x.dtype))

    if p < 2:
        numerator = b.multiply(sign, power(size, p - 1))
        if p < 1:
            apart = b.and_(apart, b.compare(size, zero, "NE"))
    else:
        numerator = b.multiply(differences, power(size, p - 2))
    return b.select(apart, b.divide(b.multiply(numerator, grad), power(divisor, p - 1)), zero)


def _derivative_of_any_norm(
    c: Context, differences: Value, grad: Value, distance: Value, p: Value
) -> Value:
    b, shape = c.b, differences.shape
    zero = c.full(shape, 0, differences.dtype)
    size, steepest = b.abs(differences), b.multiply(grad, b.sign(differences))
    less = c.full(shape, minus(b, p, 1), differences.dtype)
    apart = b.and_(b.compare(distance, zero, "NE"), b.compare(size, zero, "NE"))
    # Where nothing is apart, powers would be infinite.
    lengths = (b.select(apart, x, c.full(shape, 1, x.dtype)) for x in (size, distance))
    over, under = (b.power(x, less) for x in lengths)
    found = b.select(apart, b.divide(b.multiply(steepest, over), under), zero)
    largest = b.select(b.compare(size, distance, "EQ"), steepest, zero)
    counts, infinite = (
        c.broadcast(b.compare(p, c.full((), value, FLOAT64), "EQ"), shape)
        for value in (0.0, math.inf)
    )
    return b.select(counts, zero, b.select(infinite, largest, found))


def _all_pairs(c: Context, x: Value, y: Value, batch: tuple[int, ...]) -> Value:
    """(*batch, rows of x, rows of y, columns) differences."""
    shape = (*batch, x.shape[-2], y.shape[-2], x.shape[-1])
    left = c.reshape(x, (*x.shape[:-1], 1, x.shape[-1]))
    right = c.reshape(y, (*y.shape[:-2], 1, *y.shape[-2:]))
    return c.b.subtract(c.broadcast(left, shape), c.broadcast(right, shape))


@lowering("aten._cdist_forward.default", "pjrt_bridge._cdist_forward.default", values=("p",))
def cdist(c: Context, x: Value, y: Value, p: Number, compute_mode: int | None) -> Value:
    """The distance of each row of `x` to each row of `y`; leading dimensions broadcast."""
    batch = broadcast_shapes(x.shape[:-2], y.shape[:-2])
    return c.result(_norm(c, c.widen(_all_pairs(c, x, y, batch)), p))


@lowering("aten._cdist_backward.default", "pjrt_bridge._cdist_backward.default", values=("p",))
def cdist_backward(
    c: Context, grad: Value, x: Value, y: Value, p: Number, distances: Value
) -> Value:
    """The gradient of `x`."""
    batch = broadcast_shapes(x.shape[:-2], y.shape[:-2])
    found = _towards_rows(c, _all_pairs(c, x, y, batch), grad, distances, p)
    return c.reshape(c.result(found), c.output.shape)


def _towards_rows(
    c: Context, differences: Value, grad: Value, distances: Value, p: Number
) -> Value:
    shape = differences.shape
    last = (len(shape) - 1,)
    given, apart = (c.spread(c.broadcast(v, shape[:-1]), shape, last) for v in (grad, distances))
    return c.b.reduce_sum(_derivative(c, differences, given, apart, p), (len(shape) - 2,))


# -- pairs of rows of one matrix ------------------------------------------------------------------


@lowering("aten._pdist_forward.default", "pjrt_bridge._pdist_forward.default", values=("p",))
def pdist(c: Context, x: Value, p: Number = 2) -> Value:
    """The distances of the rows i < j, ordered by i, then j."""
    if c.output.shape[0] == 0:
        return c.zeros(0)
    first, second = _pairs(c, x.shape[0])
    return _norm(c, c.b.subtract(take(c, x, first, 0), take(c, x, second, 0)), p)


def _pairs(c: Context, rows: int) -> tuple[Value, Value]:
    """Which rows the pairs are, int64 (pairs,)."""
    b = c.b
    count = rows * (rows - 1) // 2
    number = b.iota((count,), 0, INT64)

    def whole(value: int) -> Value:
        return c.full((count,), value, INT64)

    def before(i: Value) -> Value:
        """The pairs of rows that come before row i: i * (2 rows - i - 1) / 2."""
        return b.divide(b.multiply(i, b.subtract(whole(2 * rows - 1), i)), whole(2))

    wide = 2 * rows - 1
    under = b.subtract(whole(wide * wide), b.multiply(whole(8), number))
    root = b.sqrt(c.cast(under, FLOAT64))
    half = b.divide(b.subtract(c.full((count,), wide, FLOAT64), root), c.full((count,), 2, FLOAT64))
    first = c.cast(b.floor(half), INT64)
    # The root is rounded: the row may be one off.
    first = b.select(b.compare(before(first), number, "GT"), b.subtract(first, whole(1)), first)
    following = b.add(first, whole(1))
    first = b.select(b.compare(before(following), number, "LE"), following, first)
    return first, b.add(b.add(first, whole(1)), b.subtract(number, before(first)))


@lowering("aten._pdist_backward.default", "pjrt_bridge._pdist_backward.default", values=("p",))
def pdist_backward(c: Context, grad: Value, x: Value, p: Number, distances: Value) -> Value:
    """The gradient of the rows, through the whole matrix of distances."""
    b = c.b
    rows = x.shape[0]
    if 0 in x.shape or rows < 2:
        return c.zeros(0)
    square = (rows, rows)
    row, column = b.iota(square, 0, INT64), b.iota(square, 1, INT64)
    low, high = b.minimum(row, column), b.maximum(row, column)
    twice = b.multiply(low, b.subtract(c.full(square, 2 * rows - 1, INT64), low))
    number = b.add(b.divide(twice, c.full(square, 2, INT64)), b.subtract(high, low))
    number = b.subtract(number, c.full(square, 1, INT64))
    apart = b.compare(row, column, "NE")
    number = b.select(apart, number, c.full(square, 0, INT64))
    nothing = c.full(square, 0, x.dtype)
    given, lengths = (b.select(apart, take(c, v, number, 0), nothing) for v in (grad, distances))
    return c.result(_towards_rows(c, _all_pairs(c, x, x, ()), given, lengths, p))
