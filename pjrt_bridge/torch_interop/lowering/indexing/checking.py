"""Data that is looked at before it is used: positions, divisors, and conditions on values."""

from __future__ import annotations

from collections.abc import Sequence

from pjrt_bridge import dtypes
from pjrt_bridge.stablehlo.builder.builder import Value
from pjrt_bridge.torch_interop.lowering.context import Context
from pjrt_bridge.torch_interop.lowering.registry import lowering


@lowering("pjrt_bridge.checked_positions.default")
def checked_positions(c: Context, positions: Value, low: Value, high: Value, where: str) -> Value:
    """Positions as they are; the program fails where one is out of range and a kernel sees it."""
    return c.kernels.checked_positions(c.b, positions, low, high, where)


@lowering("pjrt_bridge.positions.default")
def positions(
    c: Context, index: Value, sizes: Sequence[int], ignored: int | None, refusal: str
) -> Value:
    """The positions unchanged: `emit/positions.py` has checked them where the kernels can."""
    return index


@lowering("pjrt_bridge.checked_divisors.default")
def checked_divisors(c: Context, divisors: Value, where: str) -> Value:
    """Divisors as they are; the program fails where one is zero and a kernel sees it."""
    return c.kernels.checked_divisors(c.b, divisors, where)


@lowering("pjrt_bridge.checked.default")
def checked(c: Context, x: Value, holds: Value, where: str, refusal: str) -> Value:
    """A tensor as it is; the program fails where a condition is False and a kernel sees it."""
    failed = c.b.convert(c.b.not_(holds), _INT64)
    c.kernels.checked_positions(c.b, failed, 0, 0, where, refusal)
    return x


_INT64 = dtypes.of("int64")
