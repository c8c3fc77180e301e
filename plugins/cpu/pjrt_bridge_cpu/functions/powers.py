"""Powers and `log1p` of float32."""

from __future__ import annotations

import math

from pjrt_bridge.stablehlo import Builder, Value
from pjrt_bridge_cpu.functions.arithmetic import (
    FLOAT32,
    FLOAT64,
    is_infinite,
    is_negative,
    like,
    polynomial,
    power_of_two,
    signed,
)

_LOGARITHM = (
    *(2.8853900817901441, 0.96179667326626261, 0.57708360033386141),
    *(0.41167174562558334, 0.34074898320595381),
)
"""The logarithm to base 2 of `(1 + s) / (1 - s)` is that of `s`, `s**3` and so on.

Between `sqrt(1/2)` and `sqrt(2)` the relative error is 4.3e-12 at most; found as those of `arcs`.
"""

_POWER = (0.693147203, 0.240226479, 0.0555033247, 0.00961843736, 0.00133988744, 0.000153533618)
"""`2**r - 1` is that of `r`, `r**2` and so on, between -1/2 and 1/2; 2e-9 at most."""

_SIMPLE = (0.5, -0.5, *range(-3, 4))
"""Exponents for which the compiler has products and roots."""


def power(b: Builder, x: Value, y: Value) -> Value | None:
    """`x ** y` as C's `pow` has it, by the logarithm in float64."""
    if b.number_of(y) in _SIMPLE:
        return None
    if b.number_of(x) == 2:
        return _power_of_two(b, y)
    size, one = b.abs(x), like(b, x, 1)
    raised = _raised(b, b.multiply(b.convert(y, FLOAT64), _logarithm(b, size)))
    # All of these hold for an infinite exponent, which is even.
    half = b.multiply(y, like(b, y, 0.5))
    whole = b.compare(b.floor(y), y, "EQ")
    odd = b.and_(whole, b.compare(b.floor(half), half, "NE"))
    raised = signed(b, b.and_(odd, is_negative(b, x)), raised)
    below = b.and_(b.compare(x, like(b, x, 0), "LT"), b.compare(size, like(b, x, math.inf), "LT"))
    raised = b.select(b.and_(below, b.not_(whole)), like(b, x, math.nan), raised)
    infinite = b.and_(b.compare(size, one, "EQ"), is_infinite(b, b.abs(y)))
    is_one = b.or_(b.compare(x, one, "EQ"), b.compare(y, like(b, y, 0), "EQ"))
    return b.select(b.or_(is_one, infinite), one, raised)


def _logarithm(b: Builder, size: Value) -> Value:
    """The logarithm to base 2 in float64 of float32 that are not negative."""
    bits = b.bitcast_convert(size, "int32")
    least = b.full(size.shape, 0x3F3504F3, "int32")  # the root of 1/2
    shift = b.full(size.shape, 23, "int32")
    exponent = b.shift_right_arithmetic(b.subtract(bits, least), shift)
    digits = b.bitcast_convert(b.subtract(bits, b.shift_left(exponent, shift)), "float32")
    digits, one = b.convert(digits, FLOAT64), b.full(size.shape, 1, "float64")
    ratio = b.divide(b.subtract(digits, one), b.add(digits, one))
    fraction = b.multiply(ratio, polynomial(b, b.multiply(ratio, ratio), _LOGARITHM))
    found = b.add(b.convert(exponent, FLOAT64), fraction)
    # The bits of what is no such number are those of none.
    is_zero = b.compare(size, like(b, size, 0), "EQ")
    found = b.select(is_zero, like(b, found, -math.inf), found)
    is_regular = b.compare(size, like(b, size, math.inf), "LT")
    return b.select(is_regular, found, b.convert(size, FLOAT64))


def _raised(b: Builder, exponent: Value) -> Value:
    """Two to the power of float64, in float32."""
    bounded = b.minimum(b.maximum(exponent, like(b, exponent, -250)), like(b, exponent, 250))
    whole = b.round_even(bounded)
    rest = b.subtract(bounded, whole)
    found = b.add(b.multiply(rest, polynomial(b, rest, _POWER)), like(b, rest, 1))
    return b.convert(b.multiply(found, power_of_two(b, b.convert(whole, "int64"))), FLOAT32)


def _power_of_two(b: Builder, exponent: Value) -> Value:
    """Two to the power of float32."""
    bounded = b.minimum(b.maximum(exponent, like(b, exponent, -250)), like(b, exponent, 250))
    whole = b.round_even(bounded)
    rest = b.subtract(bounded, whole)
    found = b.add(b.multiply(rest, polynomial(b, rest, _POWER)), like(b, rest, 1))
    # In two steps: the factor can be too large or too small where the result is not.
    count = b.convert(whole, "int32")
    half = b.shift_right_arithmetic(count, b.full(count.shape, 1, "int32"))
    for part in (half, b.subtract(count, half)):
        biased = b.add(part, b.full(part.shape, 127, "int32"))
        scale = b.shift_left(biased, b.full(part.shape, 23, "int32"))
        found = b.multiply(found, b.bitcast_convert(scale, "float32"))
    return found


def log1p(b: Builder, x: Value) -> Value:
    """`log(1 + x)`, whose rounding of `1 + x` is divided out (Goldberg 1991, theorem 4)."""
    one = like(b, x, 1)
    sum_ = b.add(x, one)
    found = b.multiply(b.log(sum_), b.divide(x, b.subtract(sum_, one)))
    # The sum is 1 for all that is smaller, and infinity is no quotient.
    is_itself = b.or_(b.compare(sum_, one, "EQ"), b.compare(x, like(b, x, math.inf), "EQ"))
    return b.select(is_itself, x, found)
