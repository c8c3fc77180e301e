"""Sorting and selection by rank.

ATen semantics kept: NaN is the largest value; equal values, -0.0 and 0.0 among them, keep their
order (every sort here is stable); a 0-d tensor is a line of one. A median is the lower one of two,
and NaN where there is one, unless NaN are left out; the most frequent value is the smallest of
several. Eager does not define the position of a median or of the most frequent value among equal
values, which here is the last for the latter, nor how `mode` counts NaN, of which here each is a
value of its own.
"""

from __future__ import annotations

import math
from typing import Any

from pjrt_bridge.dtypes import DType
from pjrt_bridge.stablehlo.builder.builder import Builder, Value
from pjrt_bridge.torch_interop.lowering.context import (
    BOOL,
    FLOAT32,
    INT32,
    INT64,
    Context,
    Operand,
    OptionalValues,
    normalize_dim,
    result_type,
)
from pjrt_bridge.torch_interop.lowering.indexing.reading import along_last, gather_along
from pjrt_bridge.torch_interop.lowering.math.ordering import sorted_along
from pjrt_bridge.torch_interop.lowering.math.scan import scan
from pjrt_bridge.torch_interop.lowering.registry import lowering
from pjrt_bridge.torch_interop.lowering.shaping.shape import part


@lowering("aten.sort.default")
def sort(c: Context, x: Value, dim: int = -1, descending: bool = False) -> OptionalValues:
    """Sorted values and where they were."""
    return c.promised(*_sorted(c, x, dim, descending, INT64))


@lowering("aten.sort.stable")
def sort_stable(
    c: Context, x: Value, *, stable: bool | None = False, dim: int = -1, descending: bool = False
) -> OptionalValues:
    """Sorted values and where they were."""
    return c.promised(*_sorted(c, x, dim, descending, INT64))


@lowering("aten.topk.default")
def topk(
    c: Context, x: Value, k: int, dim: int = -1, largest: bool = True, sorted: bool = True
) -> OptionalValues:
    """The first k of the sorted values (also where `sorted` leaves their order open)."""
    at = normalize_dim(dim, x.rank)
    values, positions = _sorted(c, x, dim, largest)
    return c.promised(part(c, values, at, 0, k), part(c, positions, at, 0, k))


@lowering("aten.kthvalue.default")
def kthvalue(c: Context, x: Value, k: int, dim: int = -1, keepdim: bool = False) -> OptionalValues:
    """The k-th smallest value, counted from 1, and where it is."""
    at = normalize_dim(dim, x.rank)
    values, positions = _sorted(c, x, dim, descending=False)
    return c.promised(part(c, values, at, k - 1, k), part(c, positions, at, k - 1, k))


@lowering("aten.argsort.default", "aten.argsort.stable")
def argsort(
    c: Context, x: Value, dim: int = -1, descending: bool = False, *, stable: bool = False
) -> Value:
    """Where the sorted values were."""
    return c.reshape(c.result(_sorted(c, x, dim, descending, INT64)[1]), c.output.shape)


@lowering("aten.searchsorted.Tensor")
def searchsorted(
    c: Context,
    sorted_sequence: Value,
    x: Value,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Value | None = None,
) -> Value:
    """Where each value can be inserted: before equal ones, or behind them if `right`."""
    if sorter is not None:
        sorted_sequence = along_last(c, sorted_sequence, sorter)
    end = c.full(x.shape, sorted_sequence.shape[-1], INT32)
    return _bisect(c, sorted_sequence, x, end, right=right or side == "right")


@lowering("pjrt_bridge.searchsorted_within.default")
def searchsorted_within(
    c: Context, rows: Value, values: Value, length: Value, right: bool
) -> Value:
    """The same in the first `length` elements of each row; see `passes.padding`."""
    end = c.broadcast(c.cast(length, INT32), values.shape)
    return _bisect(c, rows, values, end, right=right)


def _bisect(c: Context, row: Value, value: Value, end: Value, *, right: bool) -> Value:
    """The position that ATen's binary search (Bucketization.cpp) finds.

    With NaN at the end of a sorted row the result depends on which elements a search compares, so
    the same elements are compared here.
    """
    kind = result_type(row, value)
    row, value = c.cast(row, kind), c.cast(value, kind)
    b, shape = c.b, value.shape
    length = row.shape[-1]
    start = c.full(shape, 0, INT32)
    one = c.full(shape, 1, INT32)
    for _ in range(length.bit_length()):
        middle = b.add(start, b.shift_right_logical(b.subtract(end, start), one))
        within = b.compare(start, end, "LT")
        # A search may have ended at `length`; what it compares then is ignored.
        place = b.minimum(middle, c.full(shape, length - 1, INT32))
        if row.rank == 1:
            element = c.reshape(along_last(c, row, c.reshape(place, (value.size,))), shape)
        else:
            element = along_last(c, row, place)
        found = b.compare(element, value, "GT" if right else "GE")
        start = b.select(b.and_(within, b.not_(found)), b.add(middle, one), start)
        end = b.select(b.and_(within, found), middle, end)
    return c.cast(start, c.output.dtype)


@lowering("aten.searchsorted.Scalar", values=("self",))
def searchsorted_number(c: Context, sorted_sequence: Value, x: Operand, **options: Any) -> Value:
    """The same for one number."""
    is_float = x.dtype.is_float if isinstance(x, Value) else isinstance(x, float)
    kind = FLOAT32 if is_float and not sorted_sequence.dtype.is_float else None
    number = c.full((), x, kind or sorted_sequence.dtype)
    return searchsorted(c, sorted_sequence, number, **options)


@lowering("aten.bucketize.Tensor")
def bucketize(
    c: Context, x: Value, boundaries: Value, *, out_int32: bool = False, right: bool = False
) -> Value:
    """`searchsorted` with one sequence."""
    return searchsorted(c, boundaries, x, right=right)


@lowering("aten.median.default")
def median(c: Context, x: Value) -> Value:
    """The median of all elements."""
    return _median_of_all(c, x, skip_nan=False)


@lowering("aten.nanmedian.default")
def nanmedian(c: Context, x: Value) -> Value:
    """The median of all elements that are numbers."""
    return _median_of_all(c, x, skip_nan=True)


@lowering("aten.median.dim")
def median_along(c: Context, x: Value, dim: int, keepdim: bool = False) -> OptionalValues:
    """The median along one dimension and where it is; of the first NaN where there is one."""
    return c.promised(*_median(c, x, dim, skip_nan=False))


@lowering("aten.nanmedian.dim")
def nanmedian_along(c: Context, x: Value, dim: int, keepdim: bool = False) -> OptionalValues:
    """The median of the numbers along one dimension and where it is."""
    return c.promised(*_median(c, x, dim, skip_nan=True))


def _median_of_all(c: Context, x: Value, *, skip_nan: bool) -> Value:
    if x.size == 0:
        return c.full((), math.nan, c.output.dtype)
    value, _ = _median(c, c.reshape(x, (x.size,)), 0, skip_nan=skip_nan)
    return c.reshape(value, ())


def _median(c: Context, x: Value, dim: int, *, skip_nan: bool) -> tuple[Value, Value]:
    """Values and positions, one along the dimension."""
    b = c.b
    at = normalize_dim(dim, x.rank)
    values, positions = _sorted(c, x, dim, descending=False)
    count = values.shape[at]
    middle = (count - 1) // 2
    if not x.dtype.is_float:
        return part(c, values, at, middle, middle + 1), part(c, positions, at, middle, middle + 1)
    # Sorted, the NaN are the last ones.
    numbers = b.reduce_sum(c.cast(b.compare(values, values, "EQ"), INT32), (at,))
    if skip_nan:
        below = b.subtract(b.maximum(numbers, _same(b, numbers, 1)), _same(b, numbers, 1))
        rank = b.shift_right_logical(below, _same(b, numbers, 1))
    else:
        whole = b.compare(numbers, _same(b, numbers, count), "EQ")
        rank = b.select(whole, _same(b, numbers, middle), numbers)
    one = (*values.shape[:at], 1, *values.shape[at + 1 :])
    chosen = c.reshape(rank, one)
    return gather_along(c, values, at, chosen), gather_along(c, positions, at, chosen)


def _same(b: Builder, x: Value, number: int) -> Value:
    return b.full(x.shape, number, x.dtype)


@lowering("aten.mode.default")
def mode(c: Context, x: Value, dim: int = -1, keepdim: bool = False) -> OptionalValues:
    """The most frequent values along one dimension and where they are."""
    b = c.b
    at = normalize_dim(dim, x.rank)
    values, positions = _sorted(c, x, dim, descending=False)
    count = values.shape[at]
    place = b.iota(values.shape, at, INT32)
    before = part(c, values, at, 0, count - 1)
    changed = b.compare(part(c, values, at, 1, count), before, "NE")
    first = c.full((*values.shape[:at], 1, *values.shape[at + 1 :]), True, BOOL)
    begins = b.concatenate([first, changed], at)
    start = b.select(begins, place, _same(b, place, 0))
    start = scan(c, start, at, 0, b.maximum)
    length = b.subtract(place, start)
    longest = c.spread(b.reduce_max(length, (at,)), length.shape, (at,))
    # The first position at which a run is as long as the longest one is the end of that run.
    far = _same(b, place, count)
    end = b.reduce_min(b.select(b.compare(length, longest, "EQ"), place, far), (at,))
    end = c.reshape(end, first.shape)
    return c.promised(gather_along(c, values, at, end), gather_along(c, positions, at, end))


def _sorted(
    c: Context, x: Value, dim: int, descending: bool, positions: DType = INT32
) -> tuple[Value, Value]:
    line = x if x.rank else c.reshape(x, (1,))
    at = normalize_dim(dim, x.rank)
    if line.size == 0:
        return line, c.full(line.shape, 0, positions)
    return sorted_along(c, line, at, descending=descending, positions=positions)
