"""Complex numbers: quotients, magnitude and angle.

ATen semantics kept: a quotient is computed by the formula of c10::complex, which decides what
divisors that are zero or infinite give; a number with an infinite part has an infinite magnitude,
even beside NaN; the angle of a real number is 0 or pi, 0 for -0.0, NaN for NaN.
"""

from __future__ import annotations

import math

from pjrt_bridge.stablehlo.builder.builder import Builder, Value
from pjrt_bridge.torch_interop.lowering.context import Context
from pjrt_bridge.torch_interop.lowering.math.approximation import infinite_where
from pjrt_bridge.torch_interop.lowering.math.complex_functions import is_infinite, parts
from pjrt_bridge.torch_interop.lowering.registry import lowering


def true_quotient(b: Builder, x: Value, y: Value) -> Value:
    """`x / y`, of complex numbers part by part, scaled by the divisor's larger part (Smith)."""
    if not x.dtype.is_complex:
        return b.divide(x, y)
    real, imag, first, second = b.real(x), b.imag(x), b.real(y), b.imag(y)
    one, zero = (b.full(first.shape, number, first.dtype) for number in (1, 0))
    wide, high = b.abs(first), b.abs(second)
    # False for NaN, as in ATen.
    is_wide = b.compare(wide, high, "GE")
    large, small = b.select(is_wide, first, second), b.select(is_wide, second, first)
    ratio = b.divide(small, large)
    scale = b.divide(one, b.add(large, b.multiply(small, ratio)))
    upper = b.select(
        is_wide,
        b.add(real, b.multiply(imag, ratio)),
        b.add(b.multiply(real, ratio), imag),
    )
    lower = b.select(
        is_wide,
        b.subtract(imag, b.multiply(real, ratio)),
        b.subtract(b.multiply(imag, ratio), real),
    )
    upper, lower = b.multiply(upper, scale), b.multiply(lower, scale)
    # By zero, as ATen divides, whatever its signs.
    empty = b.and_(b.compare(wide, zero, "EQ"), b.compare(high, zero, "EQ"))
    return b.complex_(
        b.select(empty, b.divide(real, wide), upper), b.select(empty, b.divide(imag, high), lower)
    )


def magnitude(b: Builder, x: Value) -> Value:
    """The modulus of a complex number, the absolute value of others."""
    if not x.dtype.is_complex:
        return b.abs(x)
    unbounded = b.or_(*(is_infinite(b, part) for part in parts(b, x)))
    return infinite_where(b, unbounded, b.abs(x))


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
