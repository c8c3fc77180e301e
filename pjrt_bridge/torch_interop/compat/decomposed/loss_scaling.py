"""Decompositions of the operators of `torch.amp.GradScaler`.

Micikevicius et al., "Mixed precision training" (2018), section 3.2.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

from pjrt_bridge.torch_interop.compat.operators import by_operator


def loss_scaling_decompositions() -> dict[OpOverload, Callable[..., Any]]:
    """For each operator its decomposition."""
    rules: dict[str, Callable[..., Any]] = {
        "aten._amp_foreach_non_finite_check_and_unscale.default": _unscale,
        "aten._amp_update_scale.default": _update,
    }
    return by_operator(rules)


def _unscale(
    tensors: Sequence[Tensor], found_inf: Tensor, inv_scale: Tensor
) -> tuple[list[Tensor], Tensor]:
    """Gradients without their scale, and 1.0 where one of them, or one before, is not finite."""
    found = found_inf != 0
    for tensor in tensors:
        found = found | ~tensor.isfinite().all()
    scale = inv_scale.to(torch.float32)
    unscaled = [(tensor.to(torch.float32) * scale).to(tensor.dtype) for tensor in tensors]
    return unscaled, found.to(found_inf.dtype)


def _update(
    scale: Tensor,
    growth_tracker: Tensor,
    found_inf: Tensor,
    scale_growth_factor: float,
    scale_backoff_factor: float,
    growth_interval: int,
) -> tuple[Tensor, Tensor]:
    """The next scale, and the number of steps since it changed."""
    failed = found_inf != 0
    steps = growth_tracker + 1
    due = steps == growth_interval
    grown = scale * scale_growth_factor
    larger = torch.where(due & grown.isfinite(), grown, scale)
    counted = torch.where(failed | due, torch.zeros_like(steps), steps)
    return torch.where(failed, scale * scale_backoff_factor, larger), counted
