"""Sines, cosines and tangents of float32, by the rest of the angle beyond quarter turns."""

from __future__ import annotations

import math
from fractions import Fraction
from functools import cache

from pjrt_bridge.stablehlo import Builder, Value
from pjrt_bridge_cpu.functions.arithmetic import (
    FLOAT32,
    FLOAT64,
    has_bit,
    like,
    polynomial,
    signed,
)

_SINE = (-1.6666654611e-1, 8.3321608736e-3, -1.9515295891e-4)
"""Of `r**3`, `r**5`, `r**7` between -pi/4 and pi/4 (Cephes, sinf.c)."""

_COSINE = (4.166664568298827e-2, -1.388731625493765e-3, 2.443315711809948e-5)
"""Of `r**4`, `r**6`, `r**8` there (the same)."""


def sine(b: Builder, x: Value) -> Value:
    """`sin(x)`."""
    quarter, rest = _quarters(b, x)
    found = signed(b, has_bit(b, quarter, 2), _either(b, has_bit(b, quarter, 1), rest, False))
    return _itself_near_zero(b, x, found)


def cosine(b: Builder, x: Value) -> Value:
    """`cos(x)`: negative in the second and the third quarter."""
    quarter, rest = _quarters(b, x)
    ahead = b.add(quarter, b.full(x.shape, 1, "int32"))
    return signed(b, has_bit(b, ahead, 2), _either(b, has_bit(b, quarter, 1), rest, True))


def tangent(b: Builder, x: Value) -> Value:
    """`tan(x)`: that of the rest, or its negative reciprocal in odd quarters."""
    quarter, rest = _quarters(b, x)
    odd = has_bit(b, quarter, 1)
    above, below = (_either(b, odd, rest, cosine) for cosine in (False, True))
    return _itself_near_zero(b, x, signed(b, odd, b.divide(above, below)))


def _itself_near_zero(b: Builder, x: Value, found: Value) -> Value:
    """Zeros keep their sign, and numbers below the normal ones their digits."""
    return b.select(b.compare(b.abs(x), like(b, x, 2.0**-12), "LT"), x, found)


def _quarters(b: Builder, x: Value) -> tuple[Value, Value]:
    """The nearest multiple of a quarter turn, of which the last bits are right; the angle beyond.

    A quarter turn is `pi / 2`, so `x * 2 / pi` is needed modulo 4: of `2 / pi` those digits that
    are no multiples of 4 after the shift by the exponent of `x` (Payne and Hanek 1983). The angle
    is wrong by 1e-11 at most.
    """
    digits, size = b.convert(x, FLOAT64), b.abs(x)
    factors = [like(b, digits, number) for number in _factors(0)]
    for first in _FIRSTS:
        above = b.compare(size, like(b, x, 2.0**first), "GE")
        pairs = zip(_factors(first - 23), factors, strict=True)
        factors = [b.select(above, like(b, digits, number), other) for number, other in pairs]
    high, low = (b.multiply(digits, factor) for factor in factors)
    # Of numbers of this size the last bit is 1.
    base = like(b, high, 1.5 * 2**52)
    counted = b.add(b.add(high, low), base)
    beyond = b.add(b.subtract(high, b.subtract(counted, base)), low)
    angle = b.multiply(beyond, like(b, beyond, math.pi / 2))
    quarter = b.convert(b.bitcast_convert(counted, "int64"), "int32")
    return quarter, b.convert(angle, FLOAT32)


_FIRSTS = (24, 42, 60, 78, 96, 114)
"""Exponents with which a range of numbers begins that have factors of their own."""


@cache
def _factors(last: int) -> tuple[float, float]:
    """`2 / pi` for numbers that are multiples of `2**last`, modulo 4 for each; and what it lacks.

    The product of the first with the 24 digits of a float32 is exact in float64.
    """
    exact = Fraction(2) ** last * _two_over_pi() % 4
    high = Fraction(int(exact * 2**27), 2**27)
    scale = Fraction(1, 2**last)
    return float(high * scale), float((exact - high) * scale)


@cache
def _two_over_pi() -> Fraction:
    """`2 / pi` to 400 binary digits, by `pi / 4 = 4 atan(1/5) - atan(1/239)` (Machin 1706)."""
    one = 1 << 400

    def arc(of: int) -> int:
        terms = ((one // of ** (2 * k + 1)) // (2 * k + 1) * (-1) ** k for k in range(180))
        return sum(terms)

    return Fraction(one, 2 * (4 * arc(5) - arc(239)))


def _either(b: Builder, odd: Value, rest: Value, cosine: bool) -> Value:
    """The sine of an angle near 0, or its cosine in odd quarters; with `cosine` the other one."""
    square = b.multiply(rest, rest)
    sine = b.add(rest, b.multiply(b.multiply(rest, square), polynomial(b, square, _SINE)))
    half = b.subtract(like(b, rest, 1), b.multiply(square, like(b, rest, 0.5)))
    even = b.add(half, b.multiply(b.multiply(square, square), polynomial(b, square, _COSINE)))
    return b.select(odd, *((sine, even) if cosine else (even, sine)))
