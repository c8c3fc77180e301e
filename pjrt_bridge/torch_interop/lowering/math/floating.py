"""Parts of floats and their neighbours: exponent, mantissa, the next float.

ATen semantics kept: `frexp` gives a magnitude in [0.5, 1) and leaves 0, infinities and NaN as they
are, with the exponent 0; `nextafter` gives NaN for NaN, its second argument for equal ones, and
-0.0 after the smallest negative number. They work on bits, `nextafter` also on denormal numbers;
`frexp` and `ldexp` of these depend on the device, which may flush them to 0.
"""

from __future__ import annotations

from pjrt_bridge import dtypes
from pjrt_bridge.dtypes import DType
from pjrt_bridge.stablehlo.builder.builder import Builder, Value
from pjrt_bridge.torch_interop.lowering.context import INT64, Context, Operand
from pjrt_bridge.torch_interop.lowering.registry import lowering

_MANTISSA = {"float16": 10, "bfloat16": 7, "float32": 23, "float64": 52}
"""Bits of the significand behind the implicit leading one."""


def _bits(dtype: DType) -> DType:
    """The integer type of as many bits."""
    return dtypes.of(f"int{dtype.bits}")


def _bias(dtype: DType) -> int:
    return (1 << (dtype.bits - 2 - _MANTISSA[dtype.name])) - 1


@lowering("aten.nextafter.default")
def nextafter(c: Context, x: Value, other: Value) -> Value:
    """The number next to `x` in the direction of `other`."""
    b = c.b
    out = c.output
    start, goal = (c.operand(v, out.dtype, out.shape) for v in (x, other))
    here, there = _rank(b, start), _rank(b, goal)
    zero, one = b.full(out.shape, 0, here.dtype), b.full(out.shape, 1, here.dtype)
    up = b.select(b.compare(here, there, "LT"), one, b.negate(one))
    rank = b.add(here, up)
    lowest = b.full(out.shape, -(1 << (out.dtype.bits - 1)), here.dtype)
    negative = b.or_(
        b.compare(rank, zero, "LT"),
        b.and_(b.compare(rank, zero, "EQ"), b.compare(here, zero, "LT")),
    )
    bits = b.select(negative, b.subtract(lowest, rank), rank)
    moved = b.bitcast_convert(bits, out.dtype)
    value = b.select(b.compare(here, there, "EQ"), goal, moved)
    value = b.select(b.compare(start, start, "NE"), start, value)
    return b.select(b.compare(goal, goal, "NE"), goal, value)


def _rank(b: Builder, x: Value) -> Value:
    """Integers in the order of the floats, one apart for neighbours, 0 for both zeros."""
    bits = b.bitcast_convert(x, _bits(x.dtype))
    zero = b.full(x.shape, 0, bits.dtype)
    lowest = b.full(x.shape, -(1 << (x.dtype.bits - 1)), bits.dtype)
    return b.select(b.compare(bits, zero, "LT"), b.subtract(lowest, bits), bits)


@lowering("aten.frexp.Tensor")
def frexp(c: Context, x: Value) -> tuple[Value | None, ...]:
    """Mantissas and exponents with `x == mantissa * 2 ** exponent`."""
    b = c.b
    kind, width, bias = _bits(x.dtype), _MANTISSA[x.dtype.name], _bias(x.dtype)
    bits = b.bitcast_convert(x, kind)

    def number(value: int) -> Value:
        return b.full(x.shape, value, kind)

    field = b.and_(b.shift_right_logical(bits, number(width)), number(2 * bias + 1))
    fraction = b.and_(bits, number((1 << width) - 1))
    unnormal = b.compare(field, number(0), "EQ")
    shift = b.subtract(b.count_leading_zeros(fraction), number(x.dtype.bits - 1 - width))
    shift = b.select(unnormal, shift, number(0))
    # The leading bit of the normalized fraction is implicit.
    fraction = b.and_(b.shift_left(fraction, shift), number((1 << width) - 1))
    exponent = b.subtract(b.maximum(field, number(1)), b.add(shift, number(bias - 1)))
    sign = b.and_(bits, number(-(1 << (x.dtype.bits - 1))))
    half = number((bias - 1) << width)
    mantissa = b.bitcast_convert(b.or_(b.or_(sign, half), fraction), x.dtype)
    zero = b.compare(b.shift_left(bits, number(1)), number(0), "EQ")
    plain = b.or_(zero, b.compare(field, number(2 * bias + 1), "EQ"))
    return c.promised(b.select(plain, x, mantissa), b.select(plain, number(0), exponent))


@lowering("aten.ldexp.Tensor")
def ldexp(c: Context, x: Operand, other: Operand) -> Value:
    """`x * 2 ** other`; for an integer exponent in three exact steps, none of which overflows."""
    b = c.b
    if not isinstance(other, Value) or other.dtype.is_float or other.dtype.is_complex:
        value, exponent = c.arithmetic(x, other)
        two = c.full(exponent.shape, 2, exponent.dtype)
        return c.result(b.multiply(value, b.power(two, exponent)))
    (value,) = c.arithmetic(x)
    exponent = c.operand(other, INT64, value.shape)
    limit = _bias(value.dtype) - 1
    low, high = (c.full(value.shape, n, INT64) for n in (-limit, limit))
    for _ in range(3):
        step = b.clamp(low, exponent, high)
        value = b.multiply(value, _power_of_two(c, step, value.dtype))
        exponent = b.subtract(exponent, step)
    return c.result(value)


def _power_of_two(c: Context, exponent: Value, dtype: DType) -> Value:
    """Powers of two for exponents of numbers with a leading one."""
    b = c.b
    field = b.add(exponent, c.full(exponent.shape, _bias(dtype), INT64))
    bits = b.shift_left(field, c.full(exponent.shape, _MANTISSA[dtype.name], INT64))
    return b.bitcast_convert(b.convert(bits, _bits(dtype)), dtype)


@lowering("prims.fma.default")
def multiply_add(c: Context, x: Value, y: Value, addend: Value) -> Value:
    """`x * y + addend`; whether the product is rounded is up to the device, as it is in eager."""
    left, right, base = c.arithmetic(x, y, addend)
    return c.result(c.b.add(c.b.multiply(left, right), base))
