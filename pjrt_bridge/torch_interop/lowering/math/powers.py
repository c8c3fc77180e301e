"""Powers.

ATen semantics kept: integer powers wrap; a negative integer power of an integer is 0 unless the
base is 1 or -1; half precision is computed in float32 and rounded once.
"""

from __future__ import annotations

from pjrt_bridge.stablehlo.builder.builder import Builder, Value
from pjrt_bridge.torch_interop.lowering.context import Context, Operand, Scalar
from pjrt_bridge.torch_interop.lowering.math.complex_functions import exp, log
from pjrt_bridge.torch_interop.lowering.math.functions import reciprocal, rsqrt, sqrt
from pjrt_bridge.torch_interop.lowering.registry import lowering


@lowering("aten.pow.Tensor_Scalar")
def power_scalar(c: Context, x: Value, exponent: Scalar) -> Value:
    """Powers with ATen's special cases: 0.5 is a square root, 2 a product, -1 a reciprocal.

    A power of 0.5 of float16 is none: -0.0 and -inf become 0.0 and inf.
    """
    b = c.b
    (base,) = c.arithmetic(x)
    if exponent == 0:
        return c.full(base.shape, 1, c.output.dtype)
    rooted = not base.dtype.is_integer and c.output.dtype.name != "float16"
    if rooted and exponent in (0.5, -0.5):
        return c.result(sqrt(b, base) if exponent == 0.5 else rsqrt(b, base))
    few = exponent in (1, 2, 3) or (exponent in (-1, -2) and not base.dtype.is_integer)
    if few or (base.dtype.is_integer and exponent.real > 0):
        product = _product(b, base, abs(int(exponent.real)))
        return c.result(product if exponent.real > 0 else reciprocal(b, product))
    # Unlike other Python numbers, ATen rounds the exponent to the output's type.
    rounded = c.cast(c.full(base.shape, exponent, c.output.dtype), base.dtype)
    return c.result(_power(b, base, rounded))


@lowering("aten.pow.Tensor_Tensor", "aten.pow.Scalar")
def power(c: Context, x: Operand, exponent: Value) -> Value:
    """Powers; a negative integer power of an integer is 0 unless the base is 1 or -1.

    The exponent is rounded: of a negative base only a power by an integer is a number.
    """
    base, raised = c.arithmetic(x, exponent.rounded)
    return c.result(_power(c.b, base, raised))


def _product(b: Builder, factor: Value, count: int) -> Value:
    """`count` times the factor, by squaring; `count` is at least 1."""
    if count == 1:
        return factor
    half = _product(b, b.multiply(factor, factor), count // 2)
    return b.multiply(half, factor) if count % 2 else half


def _power(b: Builder, base: Value, exponent: Value) -> Value:
    if base.dtype.is_complex:
        # As C's `cpow`, which ATen calls.
        return exp(b, b.multiply(exponent, log(b, base)))
    if not base.dtype.is_integer:
        return b.power(base, exponent)
    if base.dtype.is_unsigned_integer:
        return _integer_power(b, base, exponent)
    zero, one = b.full(base.shape, 0, base.dtype), b.full(base.shape, 1, base.dtype)
    unit = b.compare(b.abs(base), one, "EQ")
    vanishes = b.and_(b.compare(exponent, zero, "LT"), b.not_(unit))
    return b.select(vanishes, zero, _integer_power(b, base, b.abs(exponent)))


def _integer_power(b: Builder, base: Value, exponent: Value) -> Value:
    """By squaring, for all bits of the exponents; XLA's own power reads six bits only."""
    zero, one = b.full(base.shape, 0, base.dtype), b.full(base.shape, 1, base.dtype)

    def left(carried: tuple[Value, ...]) -> Value:
        unfinished = b.compare(carried[1], zero, "NE")
        return b.reduce_or(unfinished, tuple(range(base.rank)))

    def step(carried: tuple[Value, ...]) -> tuple[Value, ...]:
        square, exponent, product = carried
        odd = b.compare(b.and_(exponent, one), one, "EQ")
        return (
            b.multiply(square, square),
            b.shift_right_logical(exponent, one),
            b.select(odd, b.multiply(product, square), product),
        )

    return b.while_((base, exponent, one), left, step)[2]
