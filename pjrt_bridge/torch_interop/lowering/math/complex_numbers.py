"""Complex numbers by magnitude and angle.

ATen semantics kept: the angle of a real number is 0 or pi, 0 for -0.0, NaN for NaN.
"""

from __future__ import annotations

import math

from pjrt_bridge.stablehlo.builder.builder import Value
from pjrt_bridge.torch_interop.lowering.context import Context
from pjrt_bridge.torch_interop.lowering.registry import lowering


@lowering("aten.polar.default")
def polar(c: Context, size: Value, angle: Value) -> Value:
    """The complex number of this magnitude and angle."""
    b = c.b
    radius, turn = (c.broadcast(v, c.output.shape) for v in (size, angle))
    return b.complex_(b.multiply(radius, b.cos(turn)), b.multiply(radius, b.sin(turn)))


@lowering("aten.angle.default")
def angle(c: Context, x: Value) -> Value:
    """The angle, between -pi and pi."""
    b = c.b
    if x.dtype.is_complex:
        return b.atan2(b.imag(x), b.real(x))
    value = c.cast(x, c.output.dtype)
    zero = c.full(x.shape, 0, value.dtype)
    half_turn = c.full(x.shape, math.pi, value.dtype)
    direction = b.select(b.compare(value, zero, "LT"), half_turn, zero)
    return b.select(b.compare(value, value, "NE"), value, direction)
