"""Batch normalization in training and inference, and its derivatives.

ATen semantics kept: half precision is computed in float32 and rounded once; the variance of the
forward is biased, the running variance is updated with the unbiased one; statistics that torch
gives as tensors of no elements (in inference) are such tensors here. Formulas: Ioffe and Szegedy
(2015).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from pjrt_bridge.stablehlo.builder.builder import Value
from pjrt_bridge.torch_interop.lowering.context import Context, OptionalValues, compute_type
from pjrt_bridge.torch_interop.lowering.math.reduction import moments
from pjrt_bridge.torch_interop.lowering.nn.normalization import (
    inverse_root,
    through_normal,
)
from pjrt_bridge.torch_interop.lowering.numbers import Number, minus
from pjrt_bridge.torch_interop.lowering.registry import NotLowerable, lowering


def _batch_normalize(
    c: Context,
    x: Value,
    weight: Value | None,
    bias: Value | None,
    mean: Value,
    variance: Value,
    eps: Number,
) -> tuple[Value, Value]:
    """The normalized input in its compute type, and the reciprocal standard deviation."""
    b = c.b
    rstd = inverse_root(c, variance, eps)
    y = b.subtract(c.cast(x, mean.dtype), c.along(mean, x.shape, 1))
    scale = rstd if weight is None else b.multiply(rstd, c.cast(weight, rstd.dtype))
    y = b.multiply(y, c.along(scale, x.shape, 1))
    if bias is not None:
        y = b.add(y, c.along(c.cast(bias, y.dtype), x.shape, 1))
    return y, rstd


def _all_but_channels(x: Value) -> tuple[int, ...]:
    return (0, *range(2, x.rank))


@lowering(
    "aten._native_batch_norm_legit_functional.default",
    "pjrt_bridge._native_batch_norm_legit_functional.default",
    values=("momentum", "eps"),
)
def batch_norm_functional(
    c: Context,
    x: Value,
    weight: Value | None,
    bias: Value | None,
    running_mean: Value,
    running_var: Value,
    training: bool,
    momentum: Number,
    eps: Number,
) -> OptionalValues:
    """Output, batch mean, batch reciprocal deviation, and the new running statistics."""
    if not training:
        y, *saved = batch_norm_inference(
            c, x, weight, bias, running_mean, running_var, momentum, eps
        )
        return c.promised(y, *saved, running_mean, running_var)
    return c.promised(*_train(c, x, weight, bias, running_mean, running_var, momentum, eps))


@lowering("aten._batch_norm_with_update_functional.default")
def batch_norm_with_update(
    c: Context,
    x: Value,
    weight: Value | None,
    bias: Value | None,
    running_mean: Value,
    running_var: Value,
    momentum: Number,
    eps: Number,
) -> OptionalValues:
    """The same in training, and an empty reserve, in which other devices keep own data."""
    y, mean, rstd, *running = _train(c, x, weight, bias, running_mean, running_var, momentum, eps)
    return c.promised(y, mean, rstd, c.zeros(3), *running)


def _train(
    c: Context,
    x: Value,
    weight: Value | None,
    bias: Value | None,
    running_mean: Value,
    running_var: Value,
    momentum: Number,
    eps: Number,
) -> tuple[Value, Value, Value, Value, Value]:
    """Output, batch mean, batch reciprocal deviation, and the new running statistics."""
    variance, mean = moments(c, c.widen(x), _all_but_channels(x))
    y, rstd = _batch_normalize(c, x, weight, bias, mean, variance, eps)
    count = x.size // x.shape[1]
    # Infinite for one element, as in ATen, which divides by zero there.
    unbias = count / (count - 1) if count > 1 else math.inf
    unbiased = c.b.multiply(variance, c.full(variance.shape, unbias, variance.dtype))
    new_mean = _moving_average(c, running_mean, mean, momentum)
    new_var = _moving_average(c, running_var, unbiased, momentum)
    return y, mean, rstd, new_mean, new_var


def _moving_average(c: Context, old: Value, new: Value, momentum: Number) -> Value:
    rest = minus(c.b, 1, momentum)
    kept, added = (c.full(new.shape, v, new.dtype) for v in (rest, momentum))
    return c.b.add(c.b.multiply(c.cast(old, new.dtype), kept), c.b.multiply(new, added))


@lowering(
    "aten._native_batch_norm_legit_no_training.default",
    "pjrt_bridge._native_batch_norm_legit_no_training.default",
    values=("momentum", "eps"),
)
def batch_norm_inference(
    c: Context,
    x: Value,
    weight: Value | None,
    bias: Value | None,
    running_mean: Value,
    running_var: Value,
    momentum: Number,
    eps: Number,
) -> OptionalValues:
    """Normalized with the running statistics; nothing is saved."""
    wide = compute_type(x.dtype)
    mean, variance = (c.cast(v, wide) for v in (running_mean, running_var))
    y, _ = _batch_normalize(c, x, weight, bias, mean, variance, eps)
    return c.cast(y, x.dtype), c.zeros(1), c.zeros(2)


@lowering(
    "aten._native_batch_norm_legit.no_stats",
    "pjrt_bridge._native_batch_norm_legit.no_stats",
    values=("momentum", "eps"),
)
def batch_norm_no_stats(
    c: Context,
    x: Value,
    weight: Value | None,
    bias: Value | None,
    training: bool,
    momentum: Number,
    eps: Number,
) -> OptionalValues:
    """Normalized with the batch's statistics, which are saved."""
    variance, mean = moments(c, c.widen(x), _all_but_channels(x))
    y, rstd = _batch_normalize(c, x, weight, bias, mean, variance, eps)
    return c.promised(y, mean, rstd)


@lowering(
    "aten.native_batch_norm_backward.default",
    "pjrt_bridge.native_batch_norm_backward.default",
    values=("eps",),
)
def batch_norm_backward(
    c: Context,
    grad: Value,
    x: Value,
    weight: Value | None,
    running_mean: Value | None,
    running_var: Value | None,
    save_mean: Value | None,
    save_invstd: Value | None,
    train: bool,
    eps: Number,
    output_mask: Sequence[bool],
) -> OptionalValues:
    """Gradients of input, weight and bias; in inference the statistics are constants."""
    b = c.b
    wide = compute_type(x.dtype)
    dims = _all_but_channels(x)
    if train and save_mean is not None and save_invstd is not None:
        mean, rstd = c.cast(save_mean, wide), c.cast(save_invstd, wide)
    elif running_mean is not None and running_var is not None:
        mean, rstd = c.cast(running_mean, wide), inverse_root(c, c.cast(running_var, wide), eps)
    else:
        raise NotLowerable("batch norm's derivative without saved or running statistics")
    incoming = c.widen(grad)
    scale = c.along(rstd, x.shape, 1)
    normal = b.multiply(b.subtract(c.widen(x), c.along(mean, x.shape, 1)), scale)
    grad_x = grad_weight = grad_bias = None
    if output_mask[0]:
        weighted = incoming
        if weight is not None:
            weighted = b.multiply(incoming, c.along(c.cast(weight, wide), x.shape, 1))
        if train:
            grad_x = through_normal(c, weighted, normal, scale, dims)
        else:
            grad_x = b.multiply(weighted, scale)
    if output_mask[1]:
        grad_weight = c.reduce("sum", b.multiply(incoming, normal), dims)
    if output_mask[2]:
        grad_bias = c.reduce("sum", incoming, dims)
    return c.promised(grad_x, grad_weight, grad_bias)


@lowering("aten.batch_norm_backward.default")
def batch_norm_with_update_backward(
    c: Context,
    grad: Value,
    x: Value,
    weight: Value | None,
    running_mean: Value | None,
    running_var: Value | None,
    save_mean: Value | None,
    save_var: Value | None,
    update: bool,
    eps: Number,
    output_mask: Sequence[bool],
    reserve: Value,
) -> OptionalValues:
    """The same; the reserve is empty, and `save_var` is the reciprocal deviation."""
    return batch_norm_backward(
        c,
        grad,
        x,
        weight,
        running_mean,
        running_var,
        save_mean,
        save_var,
        update,
        eps,
        output_mask,
    )
