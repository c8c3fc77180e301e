"""Pointwise arithmetic.

ATen semantics kept: half precision is computed in float32 and rounded once; integer arithmetic
wraps; `round` rounds half to even; `floor`, `ceil`, `trunc` and `round` leave integers alone;
`remainder` has the divisor's sign and `fmod` the dividend's; floor division follows Python.
Integer division by zero, an error in eager, is undefined; divisors are checked before.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from pjrt_bridge import dtypes
from pjrt_bridge.stablehlo.builder.builder import Builder, Value
from pjrt_bridge.torch_interop.lowering.context import Context, Operand, Scalar
from pjrt_bridge.torch_interop.lowering.math.complex_numbers import magnitude, true_quotient
from pjrt_bridge.torch_interop.lowering.registry import lowering

Unary = Callable[[Builder, Value], Value]


def truncate(b: Builder, x: Value) -> Value:
    """A float without its fraction; -0.5 gives -0.0."""
    return b.select(is_negative(b, x), b.ceil(x), b.floor(x))


def is_negative(b: Builder, x: Value) -> Value:
    """The sign bit of a float, -0.0 and negative NaN included; `x < 0` for other types."""
    if not x.dtype.is_float:
        return b.compare(x, b.full(x.shape, 0, x.dtype), "LT")
    bits = b.bitcast_convert(x, dtypes.of(f"int{x.dtype.bits}"))
    return b.compare(bits, b.full(x.shape, 0, bits.dtype), "LT")


def _rounding(name: str, emit: Unary) -> None:
    @lowering(f"aten.{name}.default")
    def _lower(c: Context, x: Value) -> Value:
        return emit(c.b, x) if x.dtype.is_float else x


_rounding("ceil", Builder.ceil)
_rounding("floor", Builder.floor)
_rounding("round", Builder.round_even)
_rounding("trunc", truncate)


@lowering("aten.round.decimals")
def round_decimals(c: Context, x: Value, *, decimals: int = 0) -> Value:
    """Scale by a power of ten, round half to even, scale back, as ATen does."""
    if not x.dtype.is_float:
        return x
    (wide,) = c.arithmetic(x)
    scale = c.full(x.shape, 10.0 ** abs(decimals), wide.dtype)
    there, back = (c.b.multiply, c.b.divide) if decimals > 0 else (c.b.divide, c.b.multiply)
    return c.result(back(c.b.round_even(there(wide, scale)), scale))


@lowering("aten.abs.default")
def absolute(c: Context, x: Value) -> Value:
    """Magnitude; the smallest integer stays itself; complex gives its real modulus."""
    if x.dtype.is_bool or x.dtype.is_unsigned_integer:
        return x
    (x,) = c.precise(x)
    return c.result(magnitude(c.b, x))


@lowering("aten.neg.default")
def negate(c: Context, x: Value) -> Value:
    """Negation; unsigned integers wrap."""
    (x,) = c.precise(x)
    return c.result(c.b.negate(x))


@lowering("aten.sign.default", "aten.sgn.default")
def sign(c: Context, x: Value) -> Value:
    """-1, 0 or 1; 0 for NaN, unlike StableHLO's sign. For complex `x / abs(x)`, 0 for 0."""
    if x.dtype.is_complex:
        size = magnitude(c.b, x)
        empty = c.b.compare(size, c.full(size.shape, 0, size.dtype), "EQ")
        unit = true_quotient(c.b, x, c.b.complex_(size, c.full(size.shape, 0, size.dtype)))
        return c.b.select(empty, c.full(x.shape, 0, x.dtype), unit)
    if x.dtype.is_bool:
        return x
    zero = c.full(x.shape, 0, x.dtype)
    positive = c.cast(c.b.compare(x, zero, "GT"), x.dtype)
    return c.b.subtract(positive, c.cast(c.b.compare(x, zero, "LT"), x.dtype))


@lowering("aten.add.Tensor", "aten.add.Scalar")
def add(c: Context, x: Operand, other: Operand, alpha: Scalar = 1) -> Value:
    """`x + alpha * other`; for bool a logical or."""
    left, right = c.arithmetic(x, other)
    return c.result(c.b.add(left, term(c, right, _scale(c, alpha))))


@lowering("aten.sub.Tensor", "aten.sub.Scalar")
def subtract(c: Context, x: Operand, other: Operand, alpha: Scalar = 1) -> Value:
    """`x - alpha * other`."""
    left, right = c.arithmetic(x, other)
    if right.dtype.is_complex:
        return c.result(c.b.add(left, term(c, right, -alpha)))
    return c.result(c.b.subtract(left, term(c, right, _scale(c, alpha))))


@lowering("aten.rsub.Tensor", "aten.rsub.Scalar")
def reverse_subtract(c: Context, x: Operand, other: Operand, alpha: Scalar = 1) -> Value:
    """`other - alpha * x`."""
    return subtract(c, other, x, alpha)


def _scale(c: Context, alpha: Scalar) -> Operand:
    """The factor of a sum's second operand, which ATen rounds to the output's type."""
    if alpha == 1 or c.output.dtype.is_complex:
        return alpha
    (rounded,) = c.arithmetic(alpha)
    return rounded


def term(c: Context, x: Value, alpha: Operand) -> Value:
    """`alpha * x` as a term of ATen's sums, which multiply complex numbers by 1 and -1, too.

    A complex number times 1 is `re - 0 * im` and `im + 0 * re`: both parts become NaN where one is
    NaN, or the other one is infinite. They are written so, since XLA leaves out a factor of 1.
    """
    one = not isinstance(alpha, Value) and alpha == 1
    if not x.dtype.is_complex or isinstance(alpha, Value) or alpha not in (1, -1):
        return x if one else c.b.multiply(x, c.full(x.shape, alpha, x.dtype))
    b = c.b
    real, imag = b.real(x), b.imag(x)
    zero = b.full(x.shape, 0, real.dtype)
    signed_real, signed_imag = (real, imag) if one else (b.negate(real), b.negate(imag))
    return b.complex_(
        b.subtract(signed_real, b.multiply(imag, zero)),
        b.add(signed_imag, b.multiply(real, zero)),
    )


@lowering("aten.mul.Tensor", "aten.mul.Scalar")
def multiply(c: Context, x: Operand, other: Operand) -> Value:
    """Product; for bool a logical and."""
    (left,), right = c.arithmetic(x), c.factor(other)
    return c.result(c.b.multiply(left, right))


@lowering(
    "aten.div.Tensor",
    "aten.div.Scalar",
    "aten.div.Tensor_mode",
    "aten.div.Scalar_mode",
    "aten.true_divide.Tensor",
)
def divide(c: Context, x: Operand, other: Operand, *, rounding_mode: str | None = None) -> Value:
    """True division, or the quotient rounded towards zero ("trunc") or down ("floor").

    ATen rounds half precision before it rounds to a whole number, so these two work in the
    output's own type; but for a number, by which it divides in float32 (BinaryOpsKernel.cpp).
    """
    (left,), right = c.arithmetic(x), c.factor(other)
    if rounding_mode is None:
        return c.result(true_quotient(c.b, left, right))
    if isinstance(other, Value) and other.rank:
        left, right = c.result(left), c.result(right)
    if rounding_mode == "floor":
        return c.result(divide_down(c.b, left, right))
    quotient = c.b.divide(left, right)
    return c.result(truncate(c.b, quotient) if quotient.dtype.is_float else quotient)


@lowering("aten.floor_divide.default", "aten.floor_divide.Scalar")
def floor_divide(c: Context, x: Operand, other: Operand) -> Value:
    """Python's `//`."""
    return divide(c, x, other, rounding_mode="floor")


def divide_down(b: Builder, x: Value, y: Value) -> Value:
    """The quotient rounded down, as Python's `//` does for the type; floats too."""
    if x.dtype.is_unsigned_integer:
        return b.divide(x, y)
    zero, one = b.full(x.shape, 0, x.dtype), b.full(x.shape, 1, x.dtype)
    rest = b.remainder(x, y)
    uneven = b.compare(rest, zero, "NE")
    opposed = b.xor(b.compare(rest, zero, "LT"), b.compare(y, zero, "LT"))
    down = b.and_(uneven, opposed)
    if not x.dtype.is_float:
        quotient = b.divide(x, y)
        return b.select(down, b.subtract(quotient, one), quotient)
    # ATen's div_floor_floating: exact through the remainder, then repaired to a whole number.
    exact = b.divide(b.subtract(x, rest), y)
    exact = b.select(down, b.subtract(exact, one), exact)
    floor = b.floor(exact)
    short = b.compare(b.subtract(exact, floor), b.full(x.shape, 0.5, x.dtype), "GT")
    whole = b.select(short, b.add(floor, one), floor)
    quotient = b.divide(x, y)
    whole = b.select(b.compare(exact, zero, "EQ"), copy_sign(b, zero, quotient), whole)
    return b.select(b.compare(y, zero, "EQ"), quotient, whole)


def copy_sign(b: Builder, magnitude: Value, signed: Value) -> Value:
    """The float `magnitude` with the sign bit of `signed`."""
    positive = b.abs(magnitude)
    return b.select(is_negative(b, signed), b.negate(positive), positive)


@lowering("aten.copysign.Tensor", "aten.copysign.Scalar")
def copysign(c: Context, x: Operand, other: Operand) -> Value:
    """The magnitude of `x` with the sign of `other`; the sign of -0.0 counts."""
    left, right = c.arithmetic(x, other)
    return c.result(copy_sign(c.b, left, right))


@lowering("aten.fmod.Tensor", "aten.fmod.Scalar")
def fmod(c: Context, x: Operand, other: Operand) -> Value:
    """C's fmod: the result has the dividend's sign."""
    left, right = c.arithmetic(x, other)
    return c.result(c.b.remainder(left, right))


@lowering("aten.remainder.Tensor", "aten.remainder.Scalar", "aten.remainder.Scalar_Tensor")
def remainder(c: Context, x: Operand, other: Operand) -> Value:
    """Python's `%`: the result has the divisor's sign."""
    b = c.b
    left, right = c.arithmetic(x, other)
    rest = b.remainder(left, right)
    if left.dtype.is_unsigned_integer:
        return rest
    zero = c.full(rest.shape, 0, rest.dtype)
    opposed = b.xor(b.compare(rest, zero, "LT"), b.compare(right, zero, "LT"))
    wrong = b.and_(b.compare(rest, zero, "NE"), opposed)
    return c.result(b.select(wrong, b.add(rest, right), rest))


@lowering("aten.maximum.default")
def maximum(c: Context, x: Value, other: Value) -> Value:
    """The larger value; NaN if either is NaN."""
    left, right = c.arithmetic(x, other)
    return c.result(c.b.maximum(left, right))


@lowering("aten.minimum.default")
def minimum(c: Context, x: Value, other: Value) -> Value:
    """The smaller value; NaN if either is NaN."""
    left, right = c.arithmetic(x, other)
    return c.result(c.b.minimum(left, right))


@lowering("aten.fmax.default")
def fmax(c: Context, x: Value, other: Value) -> Value:
    """The larger value; the other one where one is NaN."""
    left, right = c.arithmetic(x, other)
    return c.result(_number_first(c.b, left, right, c.b.maximum(left, right)))


@lowering("aten.fmin.default")
def fmin(c: Context, x: Value, other: Value) -> Value:
    """The smaller value; the other one where one is NaN."""
    left, right = c.arithmetic(x, other)
    return c.result(_number_first(c.b, left, right, c.b.minimum(left, right)))


def _number_first(b: Builder, x: Value, y: Value, best: Value) -> Value:
    if not x.dtype.is_float:
        return best
    best = b.select(b.compare(y, y, "NE"), x, best)
    return b.select(b.compare(x, x, "NE"), y, best)


@lowering("aten.clamp.default", "aten.clamp.Tensor")
def clamp(c: Context, x: Value, min: Operand | None = None, max: Operand | None = None) -> Value:
    """`minimum(maximum(x, min), max)`: `max` takes precedence over `min`; any NaN gives NaN."""
    (value,) = c.arithmetic(x)
    if min is not None:
        value = c.b.maximum(value, *c.arithmetic(min))
    if max is not None:
        value = c.b.minimum(value, *c.arithmetic(max))
    return c.result(value)


@lowering("aten.clamp_min.default", "aten.clamp_min.Tensor")
def clamp_min(c: Context, x: Value, min: Operand) -> Value:
    """`maximum(x, min)`."""
    return clamp(c, x, min=min)


@lowering("aten.clamp_max.default", "aten.clamp_max.Tensor")
def clamp_max(c: Context, x: Value, max: Operand) -> Value:
    """`minimum(x, max)`."""
    return clamp(c, x, max=max)


@lowering("aten.atan2.default")
def atan2(c: Context, x: Value, other: Value) -> Value:
    """The angle of the point (other, x), signed zeros included."""
    left, right = c.arithmetic(x, other)
    return c.result(c.b.atan2(left, right))


@lowering("aten.hypot.default")
def hypot(c: Context, x: Value, other: Value) -> Value:
    """The root of a sum of squares, scaled by the larger so that squares do not overflow."""
    b = c.b
    left, right = (b.abs(v) for v in c.arithmetic(x, other))
    large, small = b.maximum(left, right), b.minimum(left, right)
    zero, infinity = (c.full(large.shape, v, large.dtype) for v in (0, math.inf))
    ratio = b.select(b.compare(large, zero, "EQ"), zero, b.divide(small, large))
    one = c.full(large.shape, 1, large.dtype)
    length = b.multiply(large, b.sqrt(b.add(one, b.multiply(ratio, ratio))))
    # An infinite side makes the hypotenuse infinite, even beside a NaN.
    unbounded = b.or_(b.compare(left, infinity, "EQ"), b.compare(right, infinity, "EQ"))
    return c.result(b.select(unbounded, infinity, length))


@lowering("aten.addcmul.default")
def addcmul(c: Context, x: Value, first: Value, second: Value, *, value: Scalar = 1) -> Value:
    """`x + value * first * second`."""
    base, left, right = c.arithmetic(x, first, second)
    return c.result(c.b.add(base, c.b.multiply(term(c, left, value), right)))


@lowering("aten.addcdiv.default")
def addcdiv(c: Context, x: Value, first: Value, second: Value, *, value: Scalar = 1) -> Value:
    """`x + value * first / second`."""
    base, left, right = c.arithmetic(x, first, second)
    return c.result(c.b.add(base, true_quotient(c.b, term(c, left, value), right)))


@lowering("aten.lerp.Scalar", "aten.lerp.Tensor")
def lerp(c: Context, start: Value, end: Value, weight: Operand) -> Value:
    """`start + weight * (end - start)`, from the nearer end as ATen does."""
    b = c.b
    low, high = c.arithmetic(start, end)
    (w,) = c.arithmetic(weight) if isinstance(weight, Value) else (c.factor(weight),)
    span = b.subtract(high, low)
    one = c.full(w.shape, 1, w.dtype)
    near = b.add(low, b.multiply(w, span))
    far = b.subtract(high, b.multiply(span, b.subtract(one, w)))
    half = c.full(w.shape, 0.5, w.dtype)
    return c.result(b.select(b.compare(b.abs(w), half, "LT"), near, far))
