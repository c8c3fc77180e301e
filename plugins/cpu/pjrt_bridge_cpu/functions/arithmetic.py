"""What functions in vectors are made of: constants, polynomials, bits."""

from __future__ import annotations

from collections.abc import Sequence

from pjrt_bridge import dtypes
from pjrt_bridge.stablehlo import Builder, Value
from pjrt_bridge_cpu.reductions import BlockedReductions

FLOAT32, FLOAT64 = map(dtypes.of, ("float32", "float64"))


def like(b: Builder, x: Value, value: float) -> Value:
    """A number in each place, of another value's type."""
    return b.full(x.shape, value, x.dtype)


def polynomial(b: Builder, x: Value, factors: Sequence[float]) -> Value:
    """The sum of `factors[i] * x**i`."""
    *others, found = (like(b, x, factor) for factor in factors)
    for factor in reversed(others):
        found = b.add(b.multiply(found, x), factor)
    return found


def has_bit(b: Builder, x: Value, bit: int) -> Value:
    """Whether int32 have a bit."""
    found = b.and_(x, b.full(x.shape, bit, "int32"))
    return b.compare(found, b.full(x.shape, 0, "int32"), "NE")


def signed(b: Builder, negative: Value, x: Value) -> Value:
    """The number, or its negative."""
    return b.select(negative, b.negate(x), x)


def is_negative(b: Builder, x: Value) -> Value:
    """Whether float32 have the sign of negative numbers, zeros too."""
    return b.compare(b.bitcast_convert(x, "int32"), b.full(x.shape, 0, "int32"), "LT")


def is_infinite(b: Builder, size: Value) -> Value:
    """Whether numbers without a sign are infinite."""
    return b.compare(size, like(b, size, float("inf")), "EQ")


def power_of_two(b: Builder, exponent: Value) -> Value:
    """Two to the power of int64 that the exponents of float64 have."""
    biased = b.add(exponent, b.full(exponent.shape, 1023, "int64"))
    return b.bitcast_convert(b.shift_left(biased, b.full(biased.shape, 52, "int64")), "float64")


def holds_anywhere(b: Builder, where: Value) -> Value:
    """Whether a condition holds for any element, as a scalar; as a maximum, which has vectors."""
    one, zero = (b.full(where.shape, number, FLOAT32) for number in (1, 0))
    count = BlockedReductions().reduce(b, "max", b.select(where, one, zero), range(where.rank))
    return b.compare(count, like(b, count, 0), "GT")
