"""Running extremes with their positions.

ATen semantics kept: NaN is larger and smaller than any number, and stays the extreme; of
equal values the last one's position is given, of several NaN the last's.
"""

from __future__ import annotations

from typing import Literal

from pjrt_bridge.stablehlo.builder.builder import Value
from pjrt_bridge.torch_interop.lowering.context import (
    INT32,
    Context,
    Scalar,
    highest,
    lowest,
    normalize_dim,
)
from pjrt_bridge.torch_interop.lowering.math.scan import Values, scan_together
from pjrt_bridge.torch_interop.lowering.registry import lowering


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

    def later(old: Values, new: Values) -> Values:
        better = b.compare(new[0], old[0], wins)
        if x.dtype.is_float:
            better = b.or_(better, b.compare(new[0], new[0], "NE"))
        return b.select(better, new[0], old[0]), b.select(better, new[1], old[1])

    at = normalize_dim(dim, x.rank)
    pair = (x, b.iota(x.shape, at, INT32))
    return c.promised(*scan_together(c, pair, at, (start, 0), later))
