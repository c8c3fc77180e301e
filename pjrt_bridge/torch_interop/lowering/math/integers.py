"""Divisors and multiples of integers.

ATen semantics kept: the greatest common divisor is not negative (but for the smallest integer,
which has no magnitude), that of (0, 0) is 0; the least common multiple of 0 and anything is 0, and
one that does not fit wraps, of narrow types after its sign is dropped.
"""

from __future__ import annotations

from pjrt_bridge.stablehlo.builder.builder import Builder, Value
from pjrt_bridge.torch_interop.lowering.context import INT32, Context
from pjrt_bridge.torch_interop.lowering.registry import lowering


@lowering("aten.gcd.default")
def gcd(c: Context, x: Value, other: Value) -> Value:
    """The greatest common divisor."""
    return _divisor(c.b, *c.arithmetic(x, other))


@lowering("aten.lcm.default")
def lcm(c: Context, x: Value, other: Value) -> Value:
    """The least common multiple."""
    b = c.b
    narrow = c.output.dtype.bits < 32
    left, right = (c.cast(v, INT32) if narrow else v for v in c.arithmetic(x, other))
    divisor = _divisor(b, left, right)
    zero, one = c.full(divisor.shape, 0, divisor.dtype), c.full(divisor.shape, 1, divisor.dtype)
    empty = b.compare(divisor, zero, "EQ")
    multiple = b.multiply(b.divide(left, b.select(empty, one, divisor)), right)
    return c.result(b.select(empty, zero, _size(b, multiple)))


def _size(b: Builder, x: Value) -> Value:
    return x if x.dtype.is_unsigned_integer else b.abs(x)


def _divisor(b: Builder, x: Value, y: Value) -> Value:
    """Euclid's algorithm, until no element has a remainder: at most about 90 iterations.

    The smallest number has no absolute value, and may make a divisor negative, as in ATen.
    """
    zero, one = b.full(x.shape, 0, x.dtype), b.full(x.shape, 1, x.dtype)

    def goes_on(carried: tuple[Value, ...]) -> Value:
        return b.reduce_or(b.compare(carried[1], zero, "NE"), tuple(range(x.rank)))

    def turn(carried: tuple[Value, ...]) -> tuple[Value, ...]:
        left, right = carried
        ended = b.compare(right, zero, "EQ")
        rest = b.remainder(left, b.select(ended, one, right))
        return b.select(ended, left, right), b.select(ended, zero, rest)

    return b.while_((_size(b, y), _size(b, x)), goes_on, turn)[0]
