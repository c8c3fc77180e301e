"""Comparisons, logic, bits and selection.

ATen semantics kept: two operands are compared in their promoted type; NaN is unequal to all,
itself included; a logical operator reads any number as `x != 0`; a shift by a negative or too
large amount gives 0 (left) or the sign (right).
"""

from __future__ import annotations

import math
from typing import Literal

from pjrt_bridge.stablehlo.builder.builder import Value
from pjrt_bridge.torch_interop.lowering.context import BOOL, Context, Operand, result_type
from pjrt_bridge.torch_interop.lowering.math.elementwise import is_negative
from pjrt_bridge.torch_interop.lowering.registry import lowering

Direction = Literal["EQ", "NE", "LT", "LE", "GT", "GE"]


def _comparison(name: str, direction: Direction) -> None:
    @lowering(f"aten.{name}.Tensor", f"aten.{name}.Scalar")
    def _lower(c: Context, x: Value, other: Operand) -> Value:
        dtype = result_type(x, other)
        left, right = (c.operand(v, dtype, c.output.shape) for v in (x, other))
        return c.b.compare(left, right, direction)


_comparison("eq", "EQ")
_comparison("ne", "NE")
_comparison("lt", "LT")
_comparison("le", "LE")
_comparison("gt", "GT")
_comparison("ge", "GE")


@lowering("aten.logical_not.default")
def logical_not(c: Context, x: Value) -> Value:
    """`x == 0`."""
    return c.b.not_(c.cast(x, BOOL))


def _logical(name: str, method: str) -> None:
    @lowering(f"aten.logical_{name}.default")
    def _lower(c: Context, x: Value, other: Value) -> Value:
        left, right = (c.broadcast(c.cast(v, BOOL), c.output.shape) for v in (x, other))
        combined: Value = getattr(c.b, method)(left, right)
        return combined


def _bitwise(name: str, method: str) -> None:
    @lowering(
        f"aten.bitwise_{name}.Tensor",
        f"aten.bitwise_{name}.Scalar",
        f"aten.bitwise_{name}.Scalar_Tensor",
    )
    def _lower(c: Context, x: Operand, other: Operand) -> Value:
        combined: Value = getattr(c.b, method)(*c.arithmetic(x, other))
        return combined


for _name, _method in {"and": "and_", "or": "or_", "xor": "xor"}.items():
    _logical(_name, _method)
    _bitwise(_name, _method)


@lowering("aten.bitwise_not.default")
def bitwise_not(c: Context, x: Value) -> Value:
    """Complement of every bit; logical not for bool."""
    return c.b.not_(x)


@lowering(
    "aten.bitwise_left_shift.Tensor",
    "aten.bitwise_left_shift.Tensor_Scalar",
    "aten.bitwise_left_shift.Scalar_Tensor",
    "aten.__lshift__.Tensor",
    "aten.__lshift__.Scalar",
)
def left_shift(c: Context, x: Operand, other: Operand) -> Value:
    """`x << other`; 0 where the amount is negative or not less than the width."""
    value, amount = c.arithmetic(x, other)
    zero = c.full(value.shape, 0, value.dtype)
    return c.b.select(_in_width(c, amount), c.b.shift_left(value, amount), zero)


@lowering(
    "aten.bitwise_right_shift.Tensor",
    "aten.bitwise_right_shift.Tensor_Scalar",
    "aten.bitwise_right_shift.Scalar_Tensor",
    "aten.__rshift__.Tensor",
    "aten.__rshift__.Scalar",
)
def right_shift(c: Context, x: Operand, other: Operand) -> Value:
    """`x >> other`, arithmetic for signed types; all sign bits where the amount is out of range."""
    value, amount = c.arithmetic(x, other)
    signed = value.dtype.is_signed_integer
    last = c.full(value.shape, value.dtype.bits - 1, value.dtype)
    zero = c.full(value.shape, 0, value.dtype)
    inside = _in_width(c, amount)
    if not signed:
        return c.b.select(inside, c.b.shift_right_logical(value, amount), zero)
    return c.b.shift_right_arithmetic(value, c.b.select(inside, amount, last))


def _in_width(c: Context, amount: Value) -> Value:
    width = c.full(amount.shape, amount.dtype.bits, amount.dtype)
    inside = c.b.compare(amount, width, "LT")
    return c.b.and_(inside, c.b.not_(is_negative(c.b, amount)))


@lowering("aten.isnan.default")
def isnan(c: Context, x: Value) -> Value:
    """True where the value is no number; never for integers."""
    return c.b.compare(x, x, "NE")


@lowering("aten.isinf.default")
def isinf(c: Context, x: Value) -> Value:
    """True at plus and minus infinity; for complex, where either part is infinite."""
    if x.dtype.is_complex:
        parts = [_is_infinite(c, part) for part in (c.b.real(x), c.b.imag(x))]
        return c.b.or_(*parts)
    return _is_infinite(c, x)


def _is_infinite(c: Context, x: Value) -> Value:
    if not x.dtype.is_float:
        return c.full(x.shape, False, BOOL)
    return c.b.compare(c.b.abs(x), c.full(x.shape, math.inf, x.dtype), "EQ")


@lowering("aten.isfinite.default")
def isfinite(c: Context, x: Value) -> Value:
    """True at numbers that are not infinite."""
    return c.b.is_finite(x) if x.dtype.is_float else c.full(x.shape, True, BOOL)


def _infinity_test(name: str, infinity: float) -> None:
    @lowering(f"aten.{name}.default")
    def _lower(c: Context, x: Value) -> Value:
        if not x.dtype.is_float:
            return c.full(x.shape, False, BOOL)
        return c.b.compare(x, c.full(x.shape, infinity, x.dtype), "EQ")


_infinity_test("isposinf", math.inf)
_infinity_test("isneginf", -math.inf)


@lowering("aten.signbit.default")
def signbit(c: Context, x: Value) -> Value:
    """True where the sign bit is set: also at -0.0."""
    if x.dtype.is_bool or x.dtype.is_unsigned_integer:
        return c.full(x.shape, False, BOOL)
    return is_negative(c.b, x)


@lowering("aten.where.self", "aten.where.ScalarSelf", "aten.where.ScalarOther", "aten.where.Scalar")
def where(c: Context, condition: Value, x: Operand, other: Operand) -> Value:
    """`x` where the condition holds, else `other`; all three broadcast, the two promoted."""
    out = c.output
    mask = c.broadcast(c.cast(condition, BOOL), out.shape)
    sides = c.precise(*(c.operand(v, out.dtype, out.shape) for v in (x, other)))
    return c.result(c.b.select(mask, *sides))


@lowering("aten.masked_fill.Scalar", "aten.masked_fill.Tensor")
def masked_fill(c: Context, x: Value, mask: Value, value: Operand) -> Value:
    """`value` where the mask holds, else `x`."""
    return where(c, mask, value, x)
