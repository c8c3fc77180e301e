"""Layer, group and weight normalization, and their derivatives.

ATen semantics kept: half precision is computed in float32 and rounded once; variances are biased.
Formulas: Ba et al. (2016), Wu and He (2018), Salimans and Kingma (2016).
"""

from __future__ import annotations

from collections.abc import Sequence

from pjrt_bridge.stablehlo.builder.builder import Value
from pjrt_bridge.stablehlo.builder.orders import memory_order
from pjrt_bridge.stablehlo.kernel_attributes import Norm
from pjrt_bridge.torch_interop.lowering.context import (
    Context,
    OptionalValues,
    compute_type,
    normalize_dim,
)
from pjrt_bridge.torch_interop.lowering.math.reduction import mean_over, moments
from pjrt_bridge.torch_interop.lowering.numbers import Number
from pjrt_bridge.torch_interop.lowering.registry import lowering


def inverse_root(c: Context, variance: Value, eps: Number) -> Value:
    """The reciprocal standard deviation."""
    return c.b.rsqrt(c.b.add(variance, c.full(variance.shape, eps, variance.dtype)))


@lowering(
    "aten.native_layer_norm.default", "pjrt_bridge.native_layer_norm.default", values=("eps",)
)
def layer_norm(
    c: Context,
    x: Value,
    normalized_shape: Sequence[int],
    weight: Value | None,
    bias: Value | None,
    eps: Number,
) -> OptionalValues:
    """Normalized over the last dimensions; also mean and reciprocal standard deviation."""
    count = len(normalized_shape)
    found = None
    if not isinstance(eps, Value):
        how = Norm(count, eps, is_centered=True, dtype=c.output.dtype)
        found = c.kernels.normalize(c.b, x, weight, bias, how)
    if found is None:
        found = normalize_last(c, c.widen(x), count, weight, bias, eps)
    return c.promised(*found)


def normalize_last(
    c: Context, x: Value, count: int, weight: Value | None, bias: Value | None, eps: Number
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


@lowering(
    "aten.native_group_norm.default", "pjrt_bridge.native_group_norm.default", values=("eps",)
)
def group_norm(
    c: Context,
    x: Value,
    weight: Value | None,
    bias: Value | None,
    n: int,
    channels: int,
    inner_size: int,
    group: int,
    eps: Number,
) -> OptionalValues:
    """Normalized over each group of channels; also mean and reciprocal standard deviation."""
    b = c.b
    found = None
    if not isinstance(eps, Value) and memory_order(x) == tuple(range(x.rank)):
        # One number for each channel.
        scale, shift = (
            None if side is None else c.reshape(side, (group, channels // group, 1))
            for side in (weight, bias)
        )
        grouped = c.reshape(x, (n, group, channels // group, inner_size))
        how = Norm(2, eps, is_centered=True, dtype=c.output.dtype)
        found = c.kernels.normalize(b, grouped, scale, shift, how)
    if found is not None:
        y, mean, rstd = found
        return c.promised(c.reshape(y, x.shape), mean, rstd)
    groups = _ChannelGroups(c, x.shape, (n, channels, inner_size), group)
    value = groups.whole(c.widen(x))
    mean = groups.mean(value)
    centered = b.subtract(value, groups.spread(mean))
    rstd = inverse_root(c, groups.mean(b.multiply(centered, centered)), eps)
    y = b.multiply(centered, groups.spread(rstd))
    if weight is not None:
        y = b.multiply(y, c.along(c.cast(weight, y.dtype), y.shape, 1))
    if bias is not None:
        y = b.add(y, c.along(c.cast(bias, y.dtype), y.shape, 1))
    return c.promised(y, mean, rstd)


class _ChannelGroups:
    """Groups of the channels of a value, of which each is one element of a statistic.

    What belongs to the elements is computed in the value's own shape: a compiler divides to find
    the place of each element in another one.

    Args:
        c: of the operator.
        shape: of the value as it is.
        sizes: batch, channels, and elements of a channel.
        count: of groups.
    """

    def __init__(
        self, c: Context, shape: Sequence[int], sizes: tuple[int, int, int], count: int
    ) -> None:
        plain = len(shape) > 2 and tuple(shape[:2]) == sizes[:2]
        self._c = c
        self._shape = tuple(shape) if plain else sizes
        self._size = sizes[1] // count * sizes[2]
        self._grouped = (sizes[0], count, sizes[1] // count)

    def whole(self, x: Value) -> Value:
        """A value of all elements: (batch, channels, ...)."""
        return self._c.reshape(x, self._shape)

    def sums(self, x: Value) -> Value:
        """The sum of each channel: (batch, channels)."""
        return self._c.reduce("sum", x, tuple(range(2, x.rank)))

    def mean_of(self, sums: Value) -> Value:
        """The mean of each group, from the sums of its channels: (batch, groups)."""
        total = self._c.reduce("sum", self._c.reshape(sums, self._grouped), (2,))
        return self._c.b.divide(total, self._c.full(total.shape, self._size, total.dtype))

    def mean(self, x: Value) -> Value:
        """The mean of each group: (batch, groups)."""
        return self.mean_of(self.sums(x))

    def spread(self, statistic: Value) -> Value:
        """A number of each group for all its elements."""
        c, grouped = self._c, self._grouped
        each = c.reshape(c.spread(statistic, grouped, (2,)), self._shape[:2])
        return c.spread(each, self._shape, tuple(range(2, len(self._shape))))


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
    groups = _ChannelGroups(c, x.shape, (n, channels, inner_size), group)
    incoming, value = groups.whole(c.widen(grad)), groups.whole(c.widen(x))
    center, scale = (groups.spread(c.reshape(c.cast(v, wide), (n, group))) for v in (mean, rstd))
    normal = b.multiply(b.subtract(value, center), scale)
    # Of each channel; all gradients are made of these.
    sums, tilts = groups.sums(incoming), groups.sums(b.multiply(incoming, normal))
    grad_x = grad_weight = grad_bias = None
    if output_mask[0]:
        weighted, sides = incoming, [sums, tilts]
        if weight is not None:
            scales = c.cast(weight, wide)
            weighted = b.multiply(incoming, c.along(scales, incoming.shape, 1))
            sides = [b.multiply(side, c.along(scales, side.shape, 1)) for side in sides]
        shift, tilt = (groups.spread(groups.mean_of(side)) for side in sides)
        inner = b.subtract(b.subtract(weighted, shift), b.multiply(normal, tilt))
        grad_x = b.multiply(scale, inner)
    if output_mask[1]:
        grad_weight = c.reduce("sum", tilts, (0,))
    if output_mask[2]:
        grad_bias = c.reduce("sum", sums, (0,))
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
