"""Layer, group and weight normalization, and their derivatives.

ATen semantics kept: half precision is computed in float32 and rounded once; variances are biased.
Formulas: Ba et al. (2016), Wu and He (2018), Salimans and Kingma (2016).
"""

from __future__ import annotations

from collections.abc import Sequence

from pjrt_bridge.stablehlo.builder.builder import Value
from pjrt_bridge.torch_interop.lowering.context import (
    Context,
    OptionalValues,
    compute_type,
    normalize_dim,
)
from pjrt_bridge.torch_interop.lowering.math.reduction import mean_over, moments
from pjrt_bridge.torch_interop.lowering.registry import lowering


def inverse_root(c: Context, variance: Value, eps: float) -> Value:
    """The reciprocal standard deviation."""
    return c.b.rsqrt(c.b.add(variance, c.full(variance.shape, eps, variance.dtype)))


@lowering("aten.native_layer_norm.default")
def layer_norm(
    c: Context,
    x: Value,
    normalized_shape: Sequence[int],
    weight: Value | None,
    bias: Value | None,
    eps: float,
) -> OptionalValues:
    """Normalized over the last dimensions; also mean and reciprocal standard deviation."""
    return c.promised(*normalize_last(c, c.widen(x), len(normalized_shape), weight, bias, eps))


def normalize_last(
    c: Context, x: Value, count: int, weight: Value | None, bias: Value | None, eps: float
) -> tuple[Value, Value, Value]:
    """Layer norm over the last `count` dimensions of a value that is in its compute type."""
    b = c.b
    inner = tuple(range(x.rank - count, x.rank))
    variance, mean = moments(c, x, inner)
    rstd = inverse_root(c, variance, eps)
    y = b.multiply(b.subtract(x, c.spread(mean, x.shape, inner)), c.spread(rstd, x.shape, inner))
    if weight is not None:
        y = b.multiply(y, c.operand(weight, y.dtype, y.shape))
    if bias is not None:
        y = b.add(y, c.operand(bias, y.dtype, y.shape))
    return y, mean, rstd


@lowering("aten.native_layer_norm_backward.default")
def layer_norm_backward(
    c: Context,
    grad: Value,
    x: Value,
    normalized_shape: Sequence[int],
    mean: Value,
    rstd: Value,
    weight: Value | None,
    bias: Value | None,
    output_mask: Sequence[bool],
) -> OptionalValues:
    """Gradients of input, weight and bias."""
    b = c.b
    outer = tuple(range(x.rank - len(normalized_shape)))
    inner = tuple(range(len(outer), x.rank))
    wide = compute_type(x.dtype)
    incoming, value = c.widen(grad), c.widen(x)
    center, scale = (c.operand(v, wide, x.shape) for v in (mean, rstd))
    normal = b.multiply(b.subtract(value, center), scale)
    grad_x = grad_weight = grad_bias = None
    if output_mask[0]:
        weighted = incoming
        if weight is not None:
            weighted = b.multiply(incoming, c.operand(weight, wide, x.shape))
        grad_x = through_normal(c, weighted, normal, scale, inner)
    if output_mask[1]:
        grad_weight = c.reduce("sum", b.multiply(incoming, normal), outer)
    if output_mask[2]:
        grad_bias = c.reduce("sum", incoming, outer)
    return c.promised(grad_x, grad_weight, grad_bias)


def through_normal(
    c: Context, grad: Value, normal: Value, rstd: Value, dims: Sequence[int]
) -> Value:
    """The gradient of `x`, `grad` being that of `normal = (x - mean) * rstd` over `dims`."""
    b = c.b
    shift = c.spread(mean_over(c, grad, dims), grad.shape, dims)
    tilt = c.spread(mean_over(c, b.multiply(grad, normal), dims), grad.shape, dims)
    return b.multiply(rstd, b.subtract(b.subtract(grad, shift), b.multiply(normal, tilt)))


@lowering("aten.native_group_norm.default")
def group_norm(
    c: Context,
    x: Value,
    weight: Value | None,
    bias: Value | None,
    n: int,
    channels: int,
    inner_size: int,
    group: int,
    eps: float,
) -> OptionalValues:
    """Normalized over each group of channels; also mean and reciprocal standard deviation."""
    b = c.b
    grouped = c.reshape(c.widen(x), (n, group, channels // group, inner_size))
    variance, mean = moments(c, grouped, (2, 3))
    rstd = inverse_root(c, variance, eps)
    centered = b.subtract(grouped, c.spread(mean, grouped.shape, (2, 3)))
    y = b.multiply(centered, c.spread(rstd, grouped.shape, (2, 3)))
    y = c.reshape(y, (n, channels, inner_size))
    if weight is not None:
        y = b.multiply(y, c.along(c.cast(weight, y.dtype), y.shape, 1))
    if bias is not None:
        y = b.add(y, c.along(c.cast(bias, y.dtype), y.shape, 1))
    return c.promised(y, mean, rstd)


@lowering("aten.native_group_norm_backward.default")
def group_norm_backward(
    c: Context,
    grad: Value,
    x: Value,
    mean: Value,
    rstd: Value,
    weight: Value | None,
    n: int,
    channels: int,
    inner_size: int,
    group: int,
    output_mask: Sequence[bool],
) -> OptionalValues:
    """Gradients of input, weight and bias."""
    b = c.b
    wide = compute_type(x.dtype)
    flat, grouped = (n, channels, inner_size), (n, group, channels // group, inner_size)
    incoming = c.reshape(c.widen(grad), flat)
    value = c.reshape(c.widen(x), grouped)
    center, scale = (
        c.spread(c.reshape(c.cast(v, wide), (n, group)), grouped, (2, 3)) for v in (mean, rstd)
    )
    normal = b.multiply(b.subtract(value, center), scale)
    grad_x = grad_weight = grad_bias = None
    if output_mask[0]:
        weighted = incoming
        if weight is not None:
            weighted = b.multiply(incoming, c.along(c.cast(weight, wide), flat, 1))
        grad_x = through_normal(c, c.reshape(weighted, grouped), normal, scale, (2, 3))
    if output_mask[1]:
        grad_weight = c.reduce("sum", b.multiply(incoming, c.reshape(normal, flat)), (0, 2))
    if output_mask[2]:
        grad_bias = c.reduce("sum", incoming, (0, 2))
    return c.promised(grad_x, grad_weight, grad_bias)


@lowering("aten._weight_norm_interface.default")
def weight_norm(c: Context, v: Value, g: Value, dim: int = 0) -> OptionalValues:
    """`g * v / norm(v)`, the norm over all dimensions but `dim`; also the norms."""
    b = c.b
    at = normalize_dim(dim, v.rank)
    dims = tuple(d for d in range(v.rank) if d != at)
    direction = c.widen(v)
    norms = b.sqrt(c.reduce("sum", b.multiply(direction, direction), dims))
    size = c.reshape(c.cast(g, direction.dtype), norms.shape)
    w = b.multiply(direction, c.along(b.divide(size, norms), v.shape, at))
    return c.promised(w, norms)


@lowering("aten._weight_norm_interface_backward.default")
def weight_norm_backward(
    c: Context, grad_w: Value, saved_v: Value, saved_g: Value, saved_norms: Value, dim: int
) -> OptionalValues:
    """Gradients of the direction `v` and the size `g`."""
    b = c.b
    at = normalize_dim(dim, saved_v.rank)
    dims = tuple(d for d in range(saved_v.rank) if d != at)
    wide = compute_type(saved_v.dtype)
    incoming, v = c.widen(grad_w), c.widen(saved_v)
    g, norms = (c.reshape(c.cast(x, wide), (v.shape[at],)) for x in (saved_g, saved_norms))
    along = b.divide(c.reduce("sum", b.multiply(incoming, v), dims), norms)
    radial = b.multiply(v, c.along(b.divide(along, norms), v.shape, at))
    grad_v = b.multiply(b.subtract(incoming, radial), c.along(b.divide(g, norms), v.shape, at))
    return c.promised(grad_v, along)
