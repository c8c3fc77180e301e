"""Sorting and selection by rank.

ATen semantics kept: NaN is the largest value; equal values, -0.0 and 0.0 among them, keep their
order (every sort here is stable); a 0-d tensor is a line of one.
"""

from __future__ import annotations

from pjrt_bridge.stablehlo.builder import Builder, Value
from pjrt_bridge.torch_interop.lowering.context import INT32, Context, axis
from pjrt_bridge.torch_interop.lowering.registry import lowering
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
