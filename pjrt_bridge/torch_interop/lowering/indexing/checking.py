"""Positions and divisors that are looked at before they are used."""

from __future__ import annotations

from pjrt_bridge.stablehlo.builder.builder import Value
from pjrt_bridge.torch_interop.lowering.context import Context
from pjrt_bridge.torch_interop.lowering.registry import lowering


@lowering("pjrt_bridge.checked_positions.default")
def checked_positions(c: Context, positions: Value, low: Value, high: Value, where: str) -> Value:
    """Positions as they are; the program fails where one is out of range and a kernel sees it."""
    return c.kernels.checked_positions(c.b, positions, low, high, where)


@lowering("pjrt_bridge.checked_divisors.default")
def checked_divisors(c: Context, divisors: Value, where: str) -> Value:
    """Divisors as they are; the program fails where one is zero and a kernel sees it."""
    return c.kernels.checked_divisors(c.b, divisors, where)
