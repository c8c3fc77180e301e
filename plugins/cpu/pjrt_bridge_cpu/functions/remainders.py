"""Remainders of divisions of float32."""

from __future__ import annotations

from pjrt_bridge.stablehlo import Builder, Value
from pjrt_bridge_cpu.functions.arithmetic import (
    FLOAT32,
    FLOAT64,
    holds_anywhere,
    is_negative,
    like,
    power_of_two,
    signed,
)

_BITS = 28
"""Of a quotient of float32 that float64 rounds down rightly, and whose product it has exactly."""


def remainder(b: Builder, x: Value, y: Value) -> Value:
    """`fmod(x, y)`, exact: by a quotient in float64, and by more of them where it is large."""
    size, divisor = b.abs(x), b.abs(y)
    bound = b.multiply(divisor, like(b, y, 2.0**_BITS))
    positive = b.compare(divisor, like(b, y, 0), "GT")

    def is_large(size: Value) -> Value:
        # What is infinite, or is divided by zero, has no remainder.
        finite = b.compare(size, like(b, size, float("inf")), "LT")
        large = b.and_(b.compare(size, bound, "GE"), b.and_(positive, finite))
        return holds_anywhere(b, large)

    def reduced(size: Value) -> Value:
        return _rest(b, size, b.multiply(b.convert(divisor, FLOAT64), _scale(b, size, divisor)))

    def rest(size: Value) -> Value:
        return signed(b, is_negative(b, x), _rest(b, size, b.convert(divisor, FLOAT64)))

    def rest_of_large() -> Value:
        return rest(*b.while_((size,), lambda at: is_large(*at), lambda at: reduced(*at)))

    return b.if_(is_large(size), rest_of_large, lambda: rest(size))[0]


def _rest(b: Builder, size: Value, divisor: Value) -> Value:
    """What is left of float32 by float64 of which they are less than `2**_BITS` times as large."""
    whole = b.convert(size, FLOAT64)
    times = b.floor(b.divide(whole, divisor))
    rest = b.convert(b.subtract(whole, b.multiply(times, divisor)), FLOAT32)
    # An infinite divisor times 0 is no number.
    return b.select(b.compare(whole, divisor, "LT"), size, rest)


def _scale(b: Builder, size: Value, divisor: Value) -> Value:
    """The least power of two, from 1 on, by which a divisor is large enough for `_rest`."""
    sides = (b.bitcast_convert(side, "int32") for side in (size, divisor))
    shift = b.full(size.shape, 23, "int32")
    exponents = [b.shift_right_arithmetic(side, shift) for side in sides]
    beyond = b.subtract(b.subtract(*exponents), b.full(size.shape, _BITS - 1, "int32"))
    least = b.maximum(beyond, b.full(size.shape, 0, "int32"))
    return power_of_two(b, b.convert(least, "int64"))
