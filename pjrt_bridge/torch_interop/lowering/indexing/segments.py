"""Reductions of consecutive segments of one dimension (`segment_reduce`), and their derivative.

Segments are given by lengths or by offsets, of which there is one more; leading dimensions of
these are batch dimensions. ATen semantics kept: an empty segment gives `initial`, or NaN as a mean,
0 as a sum, 1 as a product and an infinity as an extreme; elements in no segment are ignored; NaN
is the largest and the smallest value; a positive gradient of an extreme is divided by the elements
that are equal to it, a negative one is given to each of them undivided.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from pjrt_bridge.stablehlo.builder.builder import Value
from pjrt_bridge.stablehlo.kernel_attributes import Combination
from pjrt_bridge.torch_interop.lowering.context import INT64, Context, Scalar
from pjrt_bridge.torch_interop.lowering.indexing.along import scatter_along
from pjrt_bridge.torch_interop.lowering.indexing.reading import gather_along
from pjrt_bridge.torch_interop.lowering.math.scan import scan
from pjrt_bridge.torch_interop.lowering.registry import NotLowerable, lowering
from pjrt_bridge.torch_interop.lowering.shaping.shape import part

_EMPTY = {"sum": 0.0, "mean": 0.0, "prod": 1.0, "max": -math.inf, "min": math.inf}


class _Segments:
    """Which segment each element is in.

    Attributes:
        of: in the shape of the data, the segment; out of range for elements in none.
        lengths: (*batch, segments).
        axis: the dimension that is divided.
    """

    def __init__(
        self, c: Context, data: Value, lengths: Value | None, offsets: Value | None
    ) -> None:
        b = c.b
        if offsets is None:
            if lengths is None:
                raise NotLowerable("segment_reduce without lengths and offsets")
            self.lengths = c.cast(lengths, INT64)
            last = self.lengths.rank - 1
            ends = scan(c, self.lengths, last, 0, b.add)
            offsets = b.pad(ends, c.full((), 0, INT64), [*[0] * last, 1], [0] * ends.rank)
        else:
            offsets = c.cast(offsets, INT64)
            last, count = offsets.rank - 1, offsets.shape[-1]
            after = part(c, offsets, last, 1, count)
            self.lengths = b.subtract(after, part(c, offsets, last, 0, count - 1))
        self._c = c
        self.axis = last
        self._count = self.lengths.shape[-1]
        size = data.shape[last]
        marks = c.full((*offsets.shape[:-1], size + 1), 0, INT64)
        ones = c.full(offsets.shape, 1, INT64)
        counted = scatter_along(c, marks, last, offsets, ones, "sum")
        started = scan(c, counted, last, 0, b.add)
        of = part(c, started, last, 0, size)
        of = b.subtract(of, c.full(of.shape, 1, INT64))
        self.of = b.broadcast_in_dim(of, data.shape, tuple(range(of.rank)))

    def collect(self, values: Value, start: Scalar, how: Combination) -> Value:
        """The values combined by segment."""
        shape = list(values.shape)
        shape[self.axis] = self._count
        base = self._c.full(shape, start, values.dtype)
        if values.size == 0 or base.size == 0:
            return base
        return scatter_along(self._c, base, self.axis, self.of, values, how)

    def spread(self, x: Value) -> Value:
        """The value of its segment for each element; undefined for elements in none."""
        c, b = self._c, self._c.b
        low, high = (c.full(self.of.shape, n, INT64) for n in (0, self._count - 1))
        return gather_along(c, x, self.axis, b.clamp(low, self.of, high))

    def inside(self) -> Value:
        """Where an element is in a segment."""
        b = self._c.b
        low, high = (self._c.full(self.of.shape, n, INT64) for n in (0, self._count))
        return b.and_(b.compare(self.of, low, "GE"), b.compare(self.of, high, "LT"))

    def sizes(self, like: Value) -> Value:
        """The lengths in the shape and type of a reduced value."""
        given = self._c.cast(self.lengths, like.dtype)
        return self._c.b.broadcast_in_dim(given, like.shape, tuple(range(given.rank)))


def _check(axis: int, segments: _Segments, reduce: str) -> None:
    if axis != segments.axis or reduce not in _EMPTY:
        raise NotLowerable(f"segment_reduce by {reduce!r} along dimension {axis}")


@lowering("aten.segment_reduce.default")
def segment_reduce(
    c: Context,
    data: Value,
    reduce: str,
    *,
    lengths: Value | None = None,
    indices: Value | None = None,
    offsets: Value | None = None,
    axis: int = 0,
    unsafe: bool = False,
    initial: Scalar | None = None,
) -> Value:
    """One value per segment: "sum", "mean", "prod", "max" or "min"."""
    b = c.b
    segments = _Segments(c, data, lengths, offsets)
    _check(axis % data.rank, segments, reduce)
    hows: Mapping[str, Combination] = {"max": "max", "min": "min", "prod": "prod"}
    start = _EMPTY[reduce] if initial is None else initial
    total = segments.collect(c.widen(data), start, hows.get(reduce, "sum"))
    if reduce == "mean":
        sizes = segments.sizes(total)
        zero = c.full(sizes.shape, 0, sizes.dtype)
        empty = b.compare(sizes, zero, "EQ")
        nothing = total if initial is not None else c.full(total.shape, math.nan, total.dtype)
        total = b.select(empty, nothing, b.divide(total, sizes))
    return c.result(total)


@lowering("aten._segment_reduce_backward.default")
def segment_reduce_backward(
    c: Context,
    grad: Value,
    output: Value,
    data: Value,
    reduce: str,
    *,
    lengths: Value | None = None,
    offsets: Value | None = None,
    axis: int = 0,
    initial: Scalar | None = None,
) -> Value:
    """The gradient of the data; 0 for elements in no segment."""
    b = c.b
    segments = _Segments(c, data, lengths, offsets)
    _check(axis % data.rank, segments, reduce)
    if data.size == 0 or output.size == 0:
        return c.zeros(0)
    value, wide = c.widen(data), c.widen(grad)
    incoming = segments.spread(wide)
    zero, one = c.full(value.shape, 0, value.dtype), c.full(value.shape, 1, value.dtype)
    if reduce == "mean":
        result = b.divide(incoming, segments.spread(segments.sizes(wide)))
    elif reduce in ("max", "min"):
        best = segments.spread(c.widen(output))
        hit = b.or_(b.compare(value, best, "EQ"), b.compare(value, value, "NE"))
        count = segments.collect(b.select(hit, one, zero), 0, "sum")
        shared = b.compare(incoming, zero, "GT")
        contribution = b.divide(incoming, b.select(shared, segments.spread(count), one))
        result = b.select(hit, contribution, zero)
    elif reduce == "prod":
        result = b.multiply(incoming, _product_of_others(c, segments, value, initial))
    else:
        result = incoming
    return c.result(b.select(segments.inside(), result, zero))


def _product_of_others(
    c: Context, segments: _Segments, value: Value, initial: Scalar | None
) -> Value:
    """The product of a segment without one element, that element's zero or NaN left out too."""
    b = c.b
    zero, one = c.full(value.shape, 0, value.dtype), c.full(value.shape, 1, value.dtype)
    is_zero, is_nan = b.compare(value, zero, "EQ"), b.compare(value, value, "NE")
    plain = b.select(b.or_(is_zero, is_nan), one, value)
    product = segments.collect(plain, 1 if initial is None else initial, "prod")

    def others(mask: Value) -> Value:
        """How many of the other elements of the segment are like that."""
        own = b.select(mask, one, zero)
        return b.subtract(segments.spread(segments.collect(own, 0, "sum")), own)

    total = segments.spread(product)
    total = b.select(b.or_(is_zero, is_nan), total, b.divide(total, plain))
    total = b.select(b.compare(others(is_zero), zero, "GT"), b.multiply(total, zero), total)
    nan = c.full(value.shape, math.nan, value.dtype)
    return b.select(b.compare(others(is_nan), zero, "GT"), nan, total)
