"""Arithmetic of numbers of a call: known when the program is written, or 0-d values of it.

Both give the same results: a value is float64, in which Python computes too. See `values` of
`registry.lowering`.
"""

from __future__ import annotations

from pjrt_bridge import dtypes
from pjrt_bridge.stablehlo.builder.builder import Builder, Value

FLOAT64 = dtypes.of("float64")

Number = Value | float
"""A number of a call."""


def minus(b: Builder, x: Number, y: Number) -> Number:
    """`x - y`."""
    if isinstance(x, Value) or isinstance(y, Value):
        return b.subtract(_value(b, x), _value(b, y))
    return x - y


def times(b: Builder, x: Number, y: Number) -> Number:
    """`x * y`."""
    if isinstance(x, Value) or isinstance(y, Value):
        return b.multiply(_value(b, x), _value(b, y))
    return x * y


def over(b: Builder, x: Number, y: Number) -> Number:
    """`x / y`."""
    if isinstance(x, Value) or isinstance(y, Value):
        return b.divide(_value(b, x), _value(b, y))
    return x / y


def _value(b: Builder, x: Number) -> Value:
    return x if isinstance(x, Value) else b.full((), x, FLOAT64)
