"""Fake quantization: rounding to the numbers of a quantized type, and its gradients.

ATen's CPU kernels divide by a scale by multiplying with `1 / scale` in float32, and round ties to
even. With one scale they compute the results in float32, also those of float64. NaN becomes the
least number; where there are channels or gradients, they convert to int64 before they clamp, and
what is no int64 becomes the least number, too, as on x86.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from pjrt_bridge.dtypes import DType
from pjrt_bridge.stablehlo.builder.builder import Value
from pjrt_bridge.torch_interop.lowering.context import (
    FLOAT32,
    INT64,
    Context,
    compute_type,
    normalize_dim,
)
from pjrt_bridge.torch_interop.lowering.registry import NotLowerable, lowering

_EXACT = 1 << 24
"""Float32 holds all integers up to this one."""


class QuantizationParameters(NamedTuple):
    """The numbers of a quantized type, in the shape of what is quantized.

    Attributes:
        scale: distance of two of them, in the type in which they are computed.
        zero_point: the integer, or number, that stands for zero.
        low: the least integer.
        high: the greatest.
        wraps: whether what is no int64 becomes the least number.
        rounds_sum: whether the zero point, which is no integer then, is added before rounding.
    """

    scale: Value
    zero_point: Value
    low: int
    high: int
    wraps: bool = False
    rounds_sum: bool = False


class Quantized(NamedTuple):
    """Integers as floating point.

    Attributes:
        value: clamped.
        inside: whether clamping left it as it was.
        below: whether it was less than the least.
        inverse: of the scale.
    """

    value: Value
    inside: Value
    below: Value
    inverse: Value


def quantize(c: Context, x: Value, steps: QuantizationParameters) -> Quantized:
    """`x` (in the compute type) as integers of a quantized type."""
    if max(abs(steps.low), abs(steps.high)) > _EXACT:
        raise NotLowerable(f"integers from {steps.low} to {steps.high} are too many for float32")
    b = c.b
    narrow = c.cast(steps.scale, FLOAT32)
    inverse = c.cast(b.divide(c.full(x.shape, 1, FLOAT32), narrow), x.dtype)
    quotient = b.multiply(x, inverse)
    zero_point = c.cast(steps.zero_point, x.dtype)
    if steps.rounds_sum:
        # In float32, also of float64.
        total = c.cast(b.add(zero_point, quotient), FLOAT32)
        whole = c.cast(b.round_even(total), x.dtype)
    else:
        whole = b.add(zero_point, b.round_even(quotient))
    limit = float(1 << 63) if steps.wraps else math.inf
    known = b.compare(whole, c.full(x.shape, limit, x.dtype), "LT" if steps.wraps else "LE")
    whole = b.select(known, whole, c.full(x.shape, -math.inf, x.dtype))
    low, high = (c.full(x.shape, bound, x.dtype) for bound in (steps.low, steps.high))
    below = b.compare(whole, low, "LT")
    inside = b.and_(b.not_(below), b.compare(whole, high, "LE"))
    return Quantized(b.clamp(low, whole, high), inside, below, inverse)


def dequantize(c: Context, value: Value, steps: QuantizationParameters) -> Value:
    """Integers of a quantized type as the numbers that they stand for."""
    value = c.cast(value, steps.zero_point.dtype)
    return c.b.multiply(c.b.subtract(value, steps.zero_point), steps.scale)


def _with_mask(c: Context, x: Value, steps: QuantizationParameters) -> tuple[Value | None, ...]:
    found = quantize(c, c.widen(x), steps)
    return c.promised(dequantize(c, found.value, steps), found.inside)


def _spread(c: Context, x: Value, parameter: Value, wide: DType, axis: int | None) -> Value:
    """A scale or zero point in the shape of what is quantized: one for all, or one a channel."""
    value = c.cast(parameter, wide)
    if axis is None:
        return c.broadcast(c.reshape(value, ()), x.shape)
    return c.along(value, x.shape, normalize_dim(axis, x.rank))


@lowering("aten.fake_quantize_per_tensor_affine_cachemask.default")
def per_tensor(
    c: Context, x: Value, scale: float, zero_point: int, quant_min: int, quant_max: int
) -> tuple[Value | None, ...]:
    """One scale for all elements; what was not clamped is True in the mask."""
    step, zero = (c.full(x.shape, number, FLOAT32) for number in (scale, zero_point))
    return _with_mask(c, x, QuantizationParameters(step, zero, quant_min, quant_max))


@lowering("aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams.default")
def per_tensor_of_tensors(
    c: Context,
    x: Value,
    scale: Value,
    zero_point: Value,
    fake_quant_enabled: Value,
    quant_min: int,
    quant_max: int,
) -> tuple[Value | None, ...]:
    """As `per_tensor`; where it is not enabled, `x` as it is and a mask that is True."""
    step, zero = (_spread(c, x, item, FLOAT32, None) for item in (scale, zero_point))
    rounded, inside = _with_mask(c, x, QuantizationParameters(step, zero, quant_min, quant_max))
    assert rounded is not None
    assert inside is not None
    enabled = c.b.compare(
        c.cast(c.reshape(fake_quant_enabled, ()), INT64), c.full((), 0, INT64), "NE"
    )
    enabled = c.broadcast(enabled, x.shape)
    return c.b.select(enabled, rounded, x), c.b.or_(inside, c.b.not_(enabled))


@lowering("aten.fake_quantize_per_channel_affine_cachemask.default")
def per_channel(
    c: Context,
    x: Value,
    scale: Value,
    zero_point: Value,
    axis: int,
    quant_min: int,
    quant_max: int,
) -> tuple[Value | None, ...]:
    """A scale for each position along one dimension; a zero point may be no integer."""
    wide = compute_type(x.dtype)
    steps = QuantizationParameters(
        _spread(c, x, scale, wide, axis),
        _spread(c, x, zero_point, wide, axis),
        quant_min,
        quant_max,
        wraps=True,
        rounds_sum=zero_point.dtype.is_float,
    )
    return _with_mask(c, x, steps)


# -- learned scales and zero points ----------------------------------------------------------------


def _rounded_zero_point(c: Context, zero_point: Value, low: int, high: int) -> Value:
    """The nearest integer, ties to even, that is one of the quantized type."""
    rounded = c.b.round_even(c.cast(zero_point, FLOAT32))
    bounds = [c.full(rounded.shape, bound, FLOAT32) for bound in (low, high)]
    return c.b.clamp(bounds[0], rounded, bounds[1])


@lowering("aten._fake_quantize_learnable_per_tensor_affine.default")
def learnable_per_tensor(
    c: Context,
    x: Value,
    scale: Value,
    zero_point: Value,
    quant_min: int,
    quant_max: int,
    grad_factor: float = 1.0,
) -> Value:
    """As `per_tensor` with a rounded zero point."""
    whole = _rounded_zero_point(c, zero_point, quant_min, quant_max)
    step, zero = (_spread(c, x, item, FLOAT32, None) for item in (scale, whole))
    steps = QuantizationParameters(step, zero, quant_min, quant_max)
    return c.result(dequantize(c, quantize(c, c.widen(x), steps).value, steps))


@lowering("aten._fake_quantize_learnable_per_channel_affine.default")
def learnable_per_channel(
    c: Context,
    x: Value,
    scale: Value,
    zero_point: Value,
    axis: int,
    quant_min: int,
    quant_max: int,
    grad_factor: float = 1.0,
) -> Value:
    """As `per_channel` with rounded zero points."""
    wide = compute_type(x.dtype)
    whole = _rounded_zero_point(c, zero_point, quant_min, quant_max)
    step, zero = _spread(c, x, scale, wide, axis), _spread(c, x, whole, wide, axis)
    steps = QuantizationParameters(step, zero, quant_min, quant_max, wraps=True)
    return c.result(dequantize(c, quantize(c, c.widen(x), steps).value, steps))


@lowering("aten._fake_quantize_learnable_per_tensor_affine_backward.default")
def learnable_per_tensor_backward(
    c: Context,
    grad: Value,
    x: Value,
    scale: Value,
    zero_point: Value,
    quant_min: int,
    quant_max: int,
    grad_factor: float = 1.0,
) -> tuple[Value | None, ...]:
    """Gradients of input, scale and zero point."""
    whole = _rounded_zero_point(c, zero_point, quant_min, quant_max)
    return _learnable_backward(c, grad, x, scale, whole, None, quant_min, quant_max, grad_factor)


@lowering("aten._fake_quantize_learnable_per_channel_affine_backward.default")
def learnable_per_channel_backward(
    c: Context,
    grad: Value,
    x: Value,
    scale: Value,
    zero_point: Value,
    axis: int,
    quant_min: int,
    quant_max: int,
    grad_factor: float = 1.0,
) -> tuple[Value | None, ...]:
    """Gradients of input, scales and zero points."""
    whole = _rounded_zero_point(c, zero_point, quant_min, quant_max)
    return _learnable_backward(
        c, grad, x, scale, whole, normalize_dim(axis, x.rank), quant_min, quant_max, grad_factor
    )


def _learnable_backward(
    c: Context,
    grad: Value,
    x: Value,
    scale: Value,
    zero_point: Value,
    axis: int | None,
    low: int,
    high: int,
    factor: float,
) -> tuple[Value | None, ...]:
    if x.dtype != FLOAT32 or grad.dtype != FLOAT32:
        raise NotLowerable("ATen computes the gradients of fake quantization in float32 only")
    b = c.b
    step, zero = (_spread(c, x, item, FLOAT32, axis) for item in (scale, zero_point))
    steps = QuantizationParameters(step, zero, low, high, wraps=True)
    found = quantize(c, x, steps)
    nothing, scaled = c.full(x.shape, 0, FLOAT32), c.full(x.shape, factor, FLOAT32)
    kept = b.multiply(grad, c.cast(found.inside, FLOAT32))
    # What is clamped is `bound - zero point` scales, what is not is off by what rounding added.
    bound = b.select(found.below, c.full(x.shape, low, FLOAT32), c.full(x.shape, high, FLOAT32))
    off = b.multiply(b.subtract(dequantize(c, found.value, steps), x), found.inverse)
    of_scale = b.select(found.inside, off, b.subtract(bound, zero))
    of_zero = b.select(found.inside, nothing, b.negate(step))
    dims = [dim for dim in range(x.rank) if dim != axis]
    sums = [
        c.reduce("sum", b.multiply(b.multiply(grad, part), scaled), dims)
        for part in (of_scale, of_zero)
    ]
    return c.promised(kept, *sums)
