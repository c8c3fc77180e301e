"""Data that is looked at before it is used: positions, and numbers with a range."""

from __future__ import annotations

from pjrt_bridge import dtypes
from pjrt_bridge.stablehlo.builder.builder import Value
from pjrt_bridge.torch_interop.lowering.context import Context
from pjrt_bridge.torch_interop.lowering.registry import lowering


@lowering("pjrt_bridge.checked_positions.default")
def checked_positions(c: Context, positions: Value, low: Value, high: Value, where: str) -> Value:
    """Positions as they are; the program fails where one is out of range and a kernel sees it."""
    return c.kernels.checked_positions(c.b, positions, low, high, where)


@lowering("pjrt_bridge.checked_range.default")
def checked_range(c: Context, x: Value, low: float, high: float, where: str, refusal: str) -> Value:
    """Numbers as they are; the program fails where one is outside, or NaN, and a kernel sees it."""
    b = c.b
    # Both comparisons are false for NaN.
    within = b.and_(
        b.compare(x, c.full(x.shape, low, x.dtype), "GE"),
        b.compare(x, c.full(x.shape, high, x.dtype), "LE"),
    )
    outside = b.convert(b.not_(c.reduce("and", within, tuple(range(x.rank)))), _INT64)
    c.kernels.checked_positions(b, outside, 0, 0, where, refusal)
    return x


@lowering("pjrt_bridge.checked_hits.default")
def checked_hits(c: Context, mask: Value, count: int, where: str, refusal: str) -> Value:
    """A mask as it is; the program fails where it has another number of hits, see above."""
    hits = c.reduce("sum", c.cast(mask, _INT64), tuple(range(mask.rank)))
    c.kernels.checked_positions(c.b, hits, count, count, where, refusal)
    return mask


_INT64 = dtypes.of("int64")
