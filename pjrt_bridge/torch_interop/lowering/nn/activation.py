"""Activation functions and their derivatives.

ATen semantics kept: half precision is computed in float32 and rounded once; NaN passes through
every function; a derivative at a corner is the one that ATen chose (0 for relu at 0).
"""

from __future__ import annotations

import math

from pjrt_bridge.stablehlo.builder.builder import Value
from pjrt_bridge.torch_interop.lowering.context import Context, Scalar
from pjrt_bridge.torch_interop.lowering.math.elementwise import clamp
from pjrt_bridge.torch_interop.lowering.registry import NotLowerable, lowering

_TANH_SCALE = math.sqrt(2 / math.pi)
_TANH_CUBIC = 0.044715


@lowering("aten.relu.default")
def relu(c: Context, x: Value) -> Value:
    """`maximum(x, 0)`; NaN stays NaN."""
    (x,) = c.precise(x)
    return c.result(c.b.maximum(x, c.full(x.shape, 0, x.dtype)))


@lowering("aten.hardtanh.default")
def hardtanh(c: Context, x: Value, min_val: Scalar = -1, max_val: Scalar = 1) -> Value:
    """`x` limited to [min_val, max_val]."""
    return clamp(c, x, min_val, max_val)


@lowering("aten.hardtanh_backward.default")
def hardtanh_backward(c: Context, grad: Value, x: Value, min_val: Scalar, max_val: Scalar) -> Value:
    """The gradient strictly between the limits, else 0."""
    low, high = (c.full(x.shape, v, x.dtype) for v in (min_val, max_val))
    cut = c.b.or_(c.b.compare(x, low, "LE"), c.b.compare(x, high, "GE"))
    return c.b.select(cut, c.full(grad.shape, 0, grad.dtype), grad)


@lowering("aten.threshold_backward.default")
def threshold_backward(c: Context, grad: Value, x: Value, threshold: Scalar) -> Value:
    """0 where `x <= threshold`, else the gradient (also where `x` is NaN)."""
    below = c.b.compare(x, c.full(x.shape, threshold, x.dtype), "LE")
    (grad,) = c.precise(grad)
    return c.result(c.b.select(below, c.full(grad.shape, 0, grad.dtype), grad))


@lowering("aten.leaky_relu.default")
def leaky_relu(c: Context, x: Value, negative_slope: Scalar = 0.01) -> Value:
    """`x` where positive, else `negative_slope * x`."""
    (wide,) = c.arithmetic(x)
    positive = c.b.compare(wide, c.full(x.shape, 0, wide.dtype), "GT")
    scaled = c.b.multiply(wide, c.full(x.shape, negative_slope, wide.dtype))
    return c.result(c.b.select(positive, wide, scaled))


@lowering("aten.elu.default")
def elu(
    c: Context, x: Value, alpha: Scalar = 1, scale: Scalar = 1, input_scale: Scalar = 1
) -> Value:
    """`scale * alpha * expm1(input_scale * x)` where negative, else `scale * x`.

    At 0 both are 0, but for factors that are infinite or NaN.
    """
    b = c.b
    (wide,) = c.arithmetic(x)

    def times(value: Value, factor: Scalar) -> Value:
        return b.multiply(value, c.full(x.shape, factor, wide.dtype))

    curve = times(times(b.expm1(times(wide, input_scale)), alpha), scale)
    below = b.compare(wide, c.full(x.shape, 0, wide.dtype), "LT")
    return c.result(b.select(below, curve, times(wide, scale)))


@lowering("aten.silu.default")
def silu(c: Context, x: Value) -> Value:
    """`x * sigmoid(x)`."""
    (wide,) = c.arithmetic(x)
    return c.result(c.b.multiply(wide, c.b.logistic(wide)))


@lowering("aten.softplus.default")
def softplus(c: Context, x: Value, beta: Scalar = 1, threshold: Scalar = 20) -> Value:
    """`log(1 + exp(beta * x)) / beta`; `x` itself where `beta * x > threshold`."""
    b = c.b
    (wide,) = c.arithmetic(x)
    factor, limit = (c.full(x.shape, v, wide.dtype) for v in (beta, threshold))
    scaled = b.multiply(wide, factor)
    curve = b.divide(b.log1p(b.exp(scaled)), factor)
    return c.result(b.select(b.compare(scaled, limit, "GT"), wide, curve))


@lowering("aten.sigmoid_backward.default")
def sigmoid_backward(c: Context, grad: Value, output: Value) -> Value:
    """`grad * output * (1 - output)`."""
    b = c.b
    incoming, y = c.arithmetic(grad, output)
    one = c.full(y.shape, 1, y.dtype)
    return c.result(b.multiply(incoming, b.multiply(y, b.subtract(one, y))))


@lowering("aten.tanh_backward.default")
def tanh_backward(c: Context, grad: Value, output: Value) -> Value:
    """`grad * (1 - output ** 2)`."""
    b = c.b
    incoming, y = c.arithmetic(grad, output)
    one = c.full(y.shape, 1, y.dtype)
    return c.result(b.multiply(incoming, b.subtract(one, b.multiply(y, y))))


@lowering("aten.gelu.default")
def gelu(c: Context, x: Value, *, approximate: str = "none") -> Value:
    """`x * Phi(x)` with the normal distribution's Phi, exact or by the tanh approximation."""
    return c.result(gelu_of(c, c.widen(x), approximate))


def gelu_of(c: Context, x: Value, approximate: str = "none") -> Value:
    """`gelu` of a value that is in its compute type."""
    half, one = (c.full(x.shape, v, x.dtype) for v in (0.5, 1))
    inner = _tanh_inner(c, x) if approximate == "tanh" else _erf(c, x)
    return c.b.multiply(c.b.multiply(x, half), c.b.add(one, inner))


@lowering("aten.gelu_backward.default")
def gelu_backward(c: Context, grad: Value, x: Value, *, approximate: str = "none") -> Value:
    """`grad * (Phi(x) + x * Phi'(x))`, of the same form of Phi as the forward."""
    b = c.b
    incoming, wide = c.arithmetic(grad, x)

    def const(value: float) -> Value:
        return c.full(x.shape, value, wide.dtype)

    if approximate == "tanh":
        inner = _tanh_inner(c, wide)
        square = b.multiply(wide, wide)
        slope = b.add(const(1), b.multiply(const(3 * _TANH_CUBIC), square))
        outer = b.subtract(const(1), b.multiply(inner, inner))
        density = b.multiply(const(0.5 * _TANH_SCALE), b.multiply(outer, slope))
    else:
        inner = _erf(c, wide)
        gauss = b.exp(b.multiply(const(-0.5), b.multiply(wide, wide)))
        density = b.multiply(gauss, const(1 / math.sqrt(2 * math.pi)))
    phi = b.multiply(const(0.5), b.add(const(1), inner))
    return c.result(b.multiply(incoming, b.add(phi, b.multiply(wide, density))))


def _erf(c: Context, x: Value) -> Value:
    return c.b.erf(c.b.multiply(x, c.full(x.shape, math.sqrt(0.5), x.dtype)))


def _tanh_inner(c: Context, x: Value) -> Value:
    b = c.b
    cube = b.multiply(b.multiply(x, x), x)
    bent = b.add(x, b.multiply(c.full(x.shape, _TANH_CUBIC, x.dtype), cube))
    return b.tanh(b.multiply(c.full(x.shape, _TANH_SCALE, x.dtype), bent))


@lowering("aten.rrelu_with_noise_backward.default")
def rrelu_backward(
    c: Context,
    grad: Value,
    x: Value,
    noise: Value,
    lower: float,
    upper: float,
    training: bool,
    self_is_result: bool,
) -> Value:
    """The gradient times the slopes that were drawn, or times their mean where `x <= 0`."""
    b = c.b
    if self_is_result and not training and lower + upper < 0:
        raise NotLowerable("a result of a negative slope does not tell its argument's sign")
    incoming, value = c.arithmetic(grad, x)
    if training:
        (slopes,) = c.arithmetic(noise)
        return c.result(b.multiply(incoming, slopes))
    slope = c.full(value.shape, (lower + upper) / 2, value.dtype)
    positive = b.compare(value, c.full(value.shape, 0, value.dtype), "GT")
    return c.result(b.select(positive, incoming, b.multiply(incoming, slope)))
