"""Sorting and selection by rank.

ATen semantics kept: NaN is the largest value; equal values, -0.0 and 0.0 among them, keep their
order (every sort here is stable); a 0-d tensor is a line of one.
"""

from __future__ import annotations

from pjrt_bridge.stablehlo.builder import Builder, Value
from pjrt_bridge.torch_interop.lowering.context import INT32, Context, axis, result_type
from pjrt_bridge.torch_interop.lowering.registry import NotLowerable, lowering
from pjrt_bridge.torch_interop.lowering.shape import part

Outputs = tuple[Value | None, ...]


@lowering("aten.sort.default")
def sort(c: Context, x: Value, dim: int = -1, descending: bool = False) -> Outputs:
    """Sorted values and where they were."""
    return c.promised(*_sorted(c, x, dim, descending))


@lowering("aten.sort.stable")
def sort_stable(
    c: Context, x: Value, *, stable: bool | None = False, dim: int = -1, descending: bool = False
) -> Outputs:
    """Sorted values and where they were."""
    return c.promised(*_sorted(c, x, dim, descending))


@lowering("aten.topk.default")
def topk(
    c: Context, x: Value, k: int, dim: int = -1, largest: bool = True, sorted: bool = True
) -> Outputs:
    """The first k of the sorted values (also where `sorted` leaves their order open)."""
    at = axis(dim, x.rank)
    values, positions = _sorted(c, x, dim, largest)
    return c.promised(part(c, values, at, 0, k), part(c, positions, at, 0, k))


@lowering("aten.kthvalue.default")
def kthvalue(c: Context, x: Value, k: int, dim: int = -1, keepdim: bool = False) -> Outputs:
    """The k-th smallest value, counted from 1, and where it is."""
    at = axis(dim, x.rank)
    values, positions = _sorted(c, x, dim, descending=False)
    return c.promised(part(c, values, at, k - 1, k), part(c, positions, at, k - 1, k))


@lowering("aten.argsort.default", "aten.argsort.stable")
def argsort(
    c: Context, x: Value, dim: int = -1, descending: bool = False, *, stable: bool = False
) -> Value:
    """Where the sorted values were."""
    return c.reshape(c.result(_sorted(c, x, dim, descending)[1]), c.output.shape)


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
    """Where each value keeps the order: before equal ones, or behind them if `right`.

    A comparison with every element, which fuses into a sum: no loop, no scratch memory.
    """
    if sorter is not None:
        raise NotLowerable("searchsorted through a sorter")
    b = c.b
    kind = result_type(sorted_sequence, x)
    grid = (*x.shape, sorted_sequence.shape[-1])
    value = c.spread(c.cast(x, kind), grid, (len(grid) - 1,))
    row = c.cast(sorted_sequence, kind)
    # One sequence for all values, or one for each line of them.
    shared = row.rank == 1
    element = c.broadcast(row, grid) if shared else c.spread(row, grid, (len(grid) - 2,))
    beyond = b.compare(element, value, "GT" if right or side == "right" else "GE")
    return b.reduce_sum(c.cast(b.not_(beyond), c.output.dtype), (len(grid) - 1,))


@lowering("aten.bucketize.Tensor")
def bucketize(
    c: Context, x: Value, boundaries: Value, *, out_int32: bool = False, right: bool = False
) -> Value:
    """`searchsorted` with one sequence."""
    return searchsorted(c, boundaries, x, right=right)


def _sorted(c: Context, x: Value, dim: int, descending: bool) -> tuple[Value, Value]:
    line = x if x.rank else c.reshape(x, (1,))
    at = axis(dim, x.rank)
    values, positions = c.b.sort(
        [line, c.b.iota(line.shape, at, INT32)],
        at,
        lambda left, right: _precedes(c.b, left[0], right[0], descending),
        stable=True,
    )
    return values, positions


def _precedes(b: Builder, left: Value, right: Value, descending: bool) -> Value:
    first, second = (right, left) if descending else (left, right)
    smaller = b.compare(first, second, "LT")
    if not left.dtype.is_float:
        return smaller
    number_before_nan = b.and_(b.compare(first, first, "EQ"), b.compare(second, second, "NE"))
    return b.or_(smaller, number_before_nan)
