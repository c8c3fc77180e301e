"""Inverses of sine, cosine and tangent of float32."""

from __future__ import annotations

import math

from pjrt_bridge.stablehlo import Builder, Value
from pjrt_bridge_cpu.functions.arithmetic import (
    is_infinite,
    is_negative,
    like,
    polynomial,
    signed,
)

_TANGENT = (
    *(-0.333331527, 0.199937728, -0.142110551, 0.106660037),
    *(-0.0755221232, 0.0432118376, -0.0163679137, 0.00292068867),
)
"""Of `r**3`, `r**5` and so on between 0 and 1; the relative error is 1.7e-8 at most.

As the factors below it is the polynomial of its degree whose largest relative error is least, found
by least squares with the weights of Lawson (1961).
"""

_SINE = (0.166667525, 0.0749529764, 0.0454703758, 0.0241795156, 0.0421663068)
"""Of `r**3`, `r**5` and so on between 0 and 1/2; 4.8e-9 at most."""


def arc_tangent(b: Builder, x: Value) -> Value:
    """`atan(x)`."""
    size, one = b.abs(x), like(b, x, 1)
    found = _arc(b, b.compare(size, one, "GT"), b.minimum(size, one), b.maximum(size, one))
    return signed(b, is_negative(b, x), found)


def angle(b: Builder, y: Value, x: Value) -> Value:
    """`atan2(y, x)`: of infinite and zero coordinates as C has it."""
    above, aside = b.abs(y), b.abs(x)
    small, large = b.minimum(above, aside), b.maximum(above, aside)
    one = like(b, x, 1)
    # Two infinite ones are as long as each other, and so small as these are two zeros.
    small = b.select(is_infinite(b, small), one, small)
    large = b.select(b.compare(large, like(b, x, 0), "EQ"), one, large)
    large = b.select(b.and_(is_infinite(b, above), is_infinite(b, aside)), one, large)
    found = _arc(b, b.compare(above, aside, "GT"), small, large)
    turned = b.subtract(like(b, x, math.pi), found)
    return signed(b, is_negative(b, y), b.select(is_negative(b, x), turned, found))


def arc_sine(b: Builder, x: Value) -> Value:
    """`asin(x)`: from 1/2 on by the angle that is left to a right one, of half its sine."""
    beyond, arc = _arcs(b, x)
    rest = b.subtract(like(b, x, math.pi / 2), b.add(arc, arc))
    return signed(b, is_negative(b, x), b.select(beyond, rest, arc))


def arc_cosine(b: Builder, x: Value) -> Value:
    """`acos(x)`."""
    beyond, arc = _arcs(b, x)
    negative, double = is_negative(b, x), b.add(arc, arc)
    far = b.select(negative, b.subtract(like(b, x, math.pi), double), double)
    return b.select(beyond, far, b.subtract(like(b, x, math.pi / 2), signed(b, negative, arc)))


def _arc(b: Builder, steep: Value, small: Value, large: Value) -> Value:
    """The angle in a triangle with these legs, or the other one."""
    ratio = b.divide(small, large)
    square = b.multiply(ratio, ratio)
    found = b.add(ratio, b.multiply(b.multiply(ratio, square), polynomial(b, square, _TANGENT)))
    return b.select(steep, b.subtract(like(b, found, math.pi / 2), found), found)


def _arcs(b: Builder, x: Value) -> tuple[Value, Value]:
    """Whether the sine is larger than 1/2; its arc, or half of what that lacks of a right angle."""
    size, half = b.abs(x), like(b, x, 0.5)
    beyond = b.compare(size, half, "GT")
    halved = b.multiply(b.subtract(like(b, x, 1), size), half)
    square = b.select(beyond, halved, b.multiply(size, size))
    sine = b.select(beyond, b.sqrt(halved), size)
    arc = b.add(sine, b.multiply(b.multiply(sine, square), polynomial(b, square, _SINE)))
    return beyond, arc
