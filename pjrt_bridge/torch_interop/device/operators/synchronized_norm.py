"""The operators of `nn.SyncBatchNorm`, for which torch has kernels on its own accelerators alone.

They are composed of others; the formulas are those of CUDA (aten/src/ATen/native/cuda,
Normalization.cuh). Channels are the second dimension. Numbers narrower than float32 are added up in
float32.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def statistics(input: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """`aten.batch_norm_stats`: mean and inverse standard deviation of each channel."""
    variance, mean = torch.var_mean(_wide(input), _others(input), correction=0)
    return mean, torch.rsqrt(variance + eps)


def gathered_statistics(
    input: Tensor,
    mean: Tensor,
    invstd: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    momentum: float,
    eps: float,
    counts: Tensor,
) -> tuple[Tensor, Tensor]:
    """`aten.batch_norm_gather_stats_with_counts`: those of all processes together.

    Args:
        input: not read.
        mean: of each process, by channels.
        invstd: likewise.
        running_mean: is updated.
        running_var: is updated, by the variance without bias.
        momentum: the weight of the new numbers in the running ones.
        eps: is in the inverse standard deviations.
        counts: elements of a channel in each process.
    """
    weights = counts.to(mean.dtype).unsqueeze(1)
    count = weights.sum()
    whole_mean = (weights * mean).sum(0) / count
    variances = 1 / (invstd * invstd) - eps
    squares = (weights * (variances + (mean - whole_mean).square())).sum(0)
    for running, found in ((running_mean, whole_mean), (running_var, squares / (count - 1))):
        if running is not None:
            running.mul_(1 - momentum).add_(found.to(running.dtype) * momentum)
    return whole_mean, torch.rsqrt(squares / count + eps)


def gathered_equal_statistics(
    input: Tensor,
    mean: Tensor,
    invstd: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    momentum: float,
    eps: float,
    count: int,
) -> tuple[Tensor, Tensor]:
    """`aten.batch_norm_gather_stats`: the same where all processes have as many elements."""
    counts = mean.new_full((mean.shape[0],), count)
    return gathered_statistics(
        input, mean, invstd, running_mean, running_var, momentum, eps, counts
    )


def normalized(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor,
    invstd: Tensor,
    eps: float,
) -> Tensor:
    """`aten.batch_norm_elemt`."""
    scale = invstd if weight is None else invstd * weight
    found = (_wide(input) - _along(mean, input)) * _along(scale, input)
    if bias is not None:
        found = found + _along(bias, input)
    return found.to(input.dtype)


def backward_sums(
    grad_out: Tensor,
    input: Tensor,
    mean: Tensor,
    invstd: Tensor,
    weight: Tensor | None,
    input_g: bool,
    weight_g: bool,
    bias_g: bool,
) -> tuple[Tensor | None, ...]:
    """`aten.batch_norm_backward_reduce`: sums of this process, gradients of weight and bias."""
    gradient = _wide(grad_out)
    total = gradient.sum(_others(input))
    moment = (gradient * (_wide(input) - _along(mean, input))).sum(_others(input))
    kind = mean.dtype if weight is None else weight.dtype
    return (
        total if input_g else None,
        moment if input_g else None,
        (moment * invstd).to(kind) if weight_g else None,
        total.to(kind) if bias_g else None,
    )


def input_gradient(
    grad_out: Tensor,
    input: Tensor,
    mean: Tensor,
    invstd: Tensor,
    weight: Tensor | None,
    sum_dy: Tensor,
    sum_dy_xmu: Tensor,
    count: Tensor,
) -> Tensor:
    """`aten.batch_norm_backward_elemt`."""
    total = count.sum().to(mean.dtype)
    scale = invstd if weight is None else invstd * weight
    slope = sum_dy_xmu / total * invstd * invstd
    centered = _wide(input) - _along(mean, input)
    found = _wide(grad_out) - _along(sum_dy / total, input) - centered * _along(slope, input)
    return (found * _along(scale, input)).to(input.dtype)


KERNELS: dict[str, Callable[..., Any]] = {
    "aten.batch_norm_stats.default": statistics,
    "aten.batch_norm_gather_stats_with_counts.default": gathered_statistics,
    "aten.batch_norm_gather_stats.default": gathered_equal_statistics,
    "aten.batch_norm_elemt.default": normalized,
    "aten.batch_norm_backward_reduce.default": backward_sums,
    "aten.batch_norm_backward_elemt.default": input_gradient,
}
"""By names of operators."""


def _others(input: Tensor) -> list[int]:
    return [dimension for dimension in range(input.dim()) if dimension != 1]


def _wide(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


def _along(channels: Tensor, input: Tensor) -> Tensor:
    return channels.view(1, -1, *(1,) * (input.dim() - 2))
