"""Histograms in one and more dimensions over given or equal bins.

ATen semantics kept: a bin holds its lower edge, the last one its upper edge as well; values
outside and NaN are not counted; without a range equal bins reach from the smallest to the largest
value, 0.5 further both ways if that is one value, and from 0 to 1 if there is none; a density
divides by the sum of all counts and by the size of each bin. Everything is in the type of the data.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from pjrt_bridge.stablehlo.builder.builder import Value
from pjrt_bridge.torch_interop.lowering.context import INT64, Context
from pjrt_bridge.torch_interop.lowering.indexing.writing import into_rows
from pjrt_bridge.torch_interop.lowering.math.reduction import largest_over, smallest_over
from pjrt_bridge.torch_interop.lowering.registry import lowering
from pjrt_bridge.torch_interop.lowering.shaping.shape import part
from pjrt_bridge.torch_interop.lowering.shaping.slicing import take


@lowering("aten.histogram.bins_tensor")
def histogram(
    c: Context, x: Value, bins: Value, *, weight: Value | None = None, density: bool = False
) -> tuple[Value | None, ...]:
    """Counts between given edges, and the edges."""
    points = c.reshape(x, (x.size, 1))
    return c.promised(_counts(c, points, [bins], weight, density), bins)


@lowering("aten.histogram.bin_ct")
def histogram_of_equal_bins(
    c: Context,
    x: Value,
    bins: int = 100,
    *,
    range: Sequence[float] | None = None,
    weight: Value | None = None,
    density: bool = False,
) -> tuple[Value | None, ...]:
    """Counts in so many equal bins, and their edges."""
    points = c.reshape(x, (x.size, 1))
    edges = _equal_edges(c, points, [bins], range)
    return c.promised(_counts(c, points, edges, weight, density), edges[0])


@lowering("aten._histogramdd_bin_edges.default")
def edges_of_equal_bins(
    c: Context,
    x: Value,
    bins: Sequence[int],
    *,
    range: Sequence[float] | None = None,
    weight: Value | None = None,
    density: bool = False,
) -> tuple[Value, ...]:
    """The edges of equal bins in each dimension."""
    return tuple(_equal_edges(c, _points(c, x), bins, range))


@lowering("aten._histogramdd_from_bin_cts.default")
def histogram_of_equal_boxes(
    c: Context,
    x: Value,
    bins: Sequence[int],
    *,
    range: Sequence[float] | None = None,
    weight: Value | None = None,
    density: bool = False,
) -> Value:
    """Counts in boxes of equal bins."""
    points = _points(c, x)
    return _counts(c, points, _equal_edges(c, points, bins, range), weight, density)


@lowering("aten._histogramdd_from_bin_tensors.default")
def histogram_of_boxes(
    c: Context,
    x: Value,
    bins: Sequence[Value],
    *,
    weight: Value | None = None,
    density: bool = False,
) -> Value:
    """Counts in boxes between given edges."""
    return _counts(c, _points(c, x), bins, weight, density)


def _points(c: Context, x: Value) -> Value:
    """(points, dimensions)."""
    return c.reshape(x, (x.size // max(x.shape[-1], 1), x.shape[-1]))


def _column(c: Context, points: Value, d: int) -> Value:
    return c.reshape(part(c, points, 1, d, d + 1), (points.shape[0],))


def _equal_edges(
    c: Context, points: Value, bins: Sequence[int], given: Sequence[float] | None
) -> list[Value]:
    """For each dimension the ends of its bins."""
    b, kind = c.b, points.dtype
    edges = []
    for d, count in enumerate(bins):
        if given is not None:
            low, high = (c.full((), given[2 * d + end], kind) for end in (0, 1))
        elif points.shape[0] == 0:
            low, high = c.full((), 0, kind), c.full((), 1, kind)
        else:
            column = _column(c, points, d)
            low, high = smallest_over(c, column, (0,)), largest_over(c, column, (0,))
        flat, half = b.compare(low, high, "EQ"), c.full((), 0.5, kind)
        low, high = (
            b.select(flat, b.subtract(low, half), low),
            b.select(flat, b.add(high, half), high),
        )
        edges.append(_line(c, low, high, count + 1))
    return edges


def _line(c: Context, low: Value, high: Value, count: int) -> Value:
    """Equally spaced numbers, counted from whichever end is nearer, as `linspace` does."""
    b, kind, shape = c.b, low.dtype, (count,)
    first, last = (c.broadcast(v, shape) for v in (low, high))
    step = b.divide(b.subtract(last, first), c.full(shape, max(count - 1, 1), kind))
    counter = b.iota(shape, 0, INT64)
    back = b.subtract(c.full(shape, count - 1, INT64), counter)
    upwards = b.add(first, b.multiply(step, c.cast(counter, kind)))
    downwards = b.subtract(last, b.multiply(step, c.cast(back, kind)))
    near = b.compare(counter, c.full(shape, count // 2, INT64), "LT")
    return b.select(near, upwards, downwards)


def _counts(
    c: Context, points: Value, edges: Sequence[Value], weight: Value | None, density: bool
) -> Value:
    b, kind = c.b, points.dtype
    number = points.shape[0]
    sizes = [edge.size - 1 for edge in edges]
    box = c.full((number,), 0, INT64)
    inside = None
    for d, (edge, size) in enumerate(zip(edges, sizes, strict=True)):
        column = _column(c, points, d)
        bin_, valid = _bin(c, column, c.cast(edge, kind))
        box = b.add(b.multiply(box, c.full(box.shape, size, INT64)), bin_)
        inside = valid if inside is None else b.and_(inside, valid)
    assert inside is not None
    box = b.select(inside, box, c.full(box.shape, -1, INT64))
    shape = c.output.shape
    total = c.full((math.prod(shape), 1), 0, kind)
    if weight is None:
        increments = c.full((number, 1), 1, kind)
    else:
        increments = c.reshape(c.cast(weight, kind), (number, 1))
    hist = c.reshape(into_rows(c, total, box, increments, "sum") if number else total, shape)
    if not density:
        return hist
    everything = b.reduce_sum(hist, tuple(range(hist.rank)))
    hist = b.divide(hist, c.broadcast(everything, shape))
    for d, edge in enumerate(edges):
        ends = c.cast(edge, kind)
        widths = b.subtract(part(c, ends, 0, 1, edge.size), part(c, ends, 0, 0, edge.size - 1))
        hist = b.divide(hist, c.along(widths, shape, d))
    return hist


def _bin(c: Context, x: Value, edges: Value) -> tuple[Value, Value]:
    """The bin of each value, and whether it is in one."""
    b = c.b
    count = edges.size
    grid = (x.size, count)
    reached = b.compare(c.along(edges, grid, 1), c.along(x, grid, 0), "LE")
    place = b.reduce_sum(c.cast(reached, INT64), (1,))
    place = b.subtract(place, c.full(place.shape, 1, INT64))
    low, high = (
        c.broadcast(c.reshape(take(c, edges, c.full((1,), at, INT64), 0), ()), x.shape)
        for at in (0, count - 1)
    )
    valid = b.and_(b.compare(x, low, "GE"), b.compare(x, high, "LE"))
    last = c.full(place.shape, count - 2, INT64)
    return b.minimum(place, last), valid
