"""Running extremes with their positions.

ATen semantics kept: NaN is larger and smaller than any number and stays from where it is on; of
equal values the last one's position is given, of several NaN the last's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from pjrt_bridge.stablehlo.builder import Value
from pjrt_bridge.torch_interop.lowering.context import INT32, Context, Scalar, axis, highest, lowest
from pjrt_bridge.torch_interop.lowering.registry import lowering

Pair = tuple[Value, Value]


@lowering("aten.cummax.default")
def cummax(c: Context, x: Value, dim: int) -> tuple[Value | None, ...]:
    """The largest values so far and their positions."""
    return _running_extreme(c, x, dim, lowest(x.dtype), "GE")


@lowering("aten.cummin.default")
def cummin(c: Context, x: Value, dim: int) -> tuple[Value | None, ...]:
    """The smallest values so far and their positions."""
    return _running_extreme(c, x, dim, highest(x.dtype), "LE")


def _running_extreme(
    c: Context, x: Value, dim: int, start: Scalar, wins: Literal["GE", "LE"]
) -> tuple[Value | None, ...]:
    b = c.b
    if x.rank == 0:
        return c.promised(x, c.full((), 0, INT32))

    def later(old: Pair, new: Pair) -> Pair:
        better = b.compare(new[0], old[0], wins)
        if x.dtype.is_float:
            better = b.or_(better, b.compare(new[0], new[0], "NE"))
        return b.select(better, new[0], old[0]), b.select(better, new[1], old[1])

    at = axis(dim, x.rank)
    pair = (x, b.iota(x.shape, at, INT32))
    return c.promised(*_scan_pairs(c, pair, at, start, later))


def _scan_pairs(
    c: Context, pair: Pair, dim: int, start: Scalar, combine: Callable[[Pair, Pair], Pair]
) -> Pair:
    """`reduction.scan` of values together with positions; what comes before the first loses."""
    values, positions = pair
    identities = (c.full((), start, values.dtype), c.full((), 0, positions.dtype))
    shift, none = 1, [0] * values.rank
    while shift < values.shape[dim]:
        low = [shift if d == dim else 0 for d in range(values.rank)]
        high = [-n for n in low]
        earlier = (
            c.b.pad(values, identities[0], low, high, none),
            c.b.pad(positions, identities[1], low, high, none),
        )
        values, positions = combine(earlier, (values, positions))
        shift *= 2
    return values, positions
