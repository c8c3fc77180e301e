"""Building blocks of approximations of mathematical functions: series, constants, NaN and poles.

Everything works on floats of one type, elementwise, and in that type. Coefficients are double
precision; the highest power comes first, as the tables in the literature have them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from pjrt_bridge.stablehlo.builder.builder import Builder, Value
from pjrt_bridge.torch_interop.lowering.context import Context, Scalar
from pjrt_bridge.torch_interop.lowering.registry import lowering

ScalarFunction = Callable[[Builder, Value], Value]
"""From a float value to one of the same type and shape."""

EPSILON = {32: 2.0**-23, 64: 2.0**-52}
"""By the bits of a float: the distance from 1 to the next larger one."""


def elementwise(*names: str) -> Callable[[ScalarFunction], ScalarFunction]:
    """Register a function as the lowering of operators of one tensor.

    Integers and bools are converted to the output's float; half precision is computed in float32
    and rounded once.
    """

    def register(function: ScalarFunction) -> ScalarFunction:
        @lowering(*names)
        def _lower(c: Context, x: Value) -> Value:
            return c.result(function(c.b, c.widen(x, c.output.dtype)))

        return function

    return register


def like(b: Builder, x: Value, value: Scalar) -> Value:
    """A number in the shape and type of `x`."""
    return b.full(x.shape, value, x.dtype)


def plus(b: Builder, x: Value, number: float) -> Value:
    """`x + number`."""
    return b.add(x, like(b, x, number))


def minus(b: Builder, number: float, x: Value) -> Value:
    """`number - x`."""
    return b.subtract(like(b, x, number), x)


def times(b: Builder, x: Value, factor: float) -> Value:
    """`x * factor`."""
    return b.multiply(x, like(b, x, factor))


def over(b: Builder, number: float, x: Value) -> Value:
    """`number / x`."""
    return b.divide(like(b, x, number), x)


def less(b: Builder, x: Value, bound: float) -> Value:
    """`x < bound`; False for NaN."""
    return b.compare(x, like(b, x, bound), "LT")


def at_most(b: Builder, x: Value, bound: float) -> Value:
    """`x <= bound`; False for NaN."""
    return b.compare(x, like(b, x, bound), "LE")


def equals(b: Builder, x: Value, number: float) -> Value:
    """`x == number`."""
    return b.compare(x, like(b, x, number), "EQ")


def is_nan(b: Builder, x: Value) -> Value:
    """Where `x` is no number."""
    return b.compare(x, x, "NE")


def nan_where(b: Builder, condition: Value, x: Value) -> Value:
    """`x`, but NaN where the condition holds."""
    return b.select(condition, like(b, x, math.nan), x)


def infinite_where(b: Builder, condition: Value, x: Value, sign: int = 1) -> Value:
    """`x`, but infinite where the condition holds."""
    return b.select(condition, like(b, x, sign * math.inf), x)


def polynomial(b: Builder, x: Value, coefficients: Sequence[float]) -> Value:
    """By Horner's rule."""
    total = like(b, x, coefficients[0])
    for coefficient in coefficients[1:]:
        total = plus(b, b.multiply(total, x), coefficient)
    return total


def ratio(b: Builder, x: Value, above: Sequence[float], below: Sequence[float]) -> Value:
    """A rational function: the polynomial `above` over the polynomial `below`."""
    return b.divide(polynomial(b, x, above), polynomial(b, x, below))


def chebyshev_series(b: Builder, x: Value, coefficients: Sequence[float]) -> Value:
    """The sum of `c[k] T_k(x / 2)`, the last, k = 0, counted half, by Clenshaw's recurrence.

    `x` lies in [-2, 2] (Cephes' convention, `chbevl`).
    """
    older = old = like(b, x, 0)
    new = like(b, x, coefficients[0])
    for coefficient in coefficients[1:]:
        older, old = old, new
        new = plus(b, b.subtract(b.multiply(x, old), older), coefficient)
    return times(b, b.subtract(new, older), 0.5)
