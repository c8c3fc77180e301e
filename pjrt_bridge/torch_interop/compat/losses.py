"""Decompositions of losses whose gradients torch's own decompositions compute less exactly."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._decomp.decompositions import Reduction, pw_cast_for_opmath
from torch._ops import OpOverload

from pjrt_bridge.torch_interop.compat.operators import operator


def loss_decompositions() -> dict[OpOverload, Callable[..., Any]]:
    """For each operator its decomposition."""
    found = operator("aten.soft_margin_loss_backward.default")
    return {} if found is None else {found: _soft_margin_backward}


@pw_cast_for_opmath
def _soft_margin_backward(
    grad_output: Tensor, self: Tensor, target: Tensor, reduction: int
) -> Tensor:
    """The gradient of `log1p(exp(-target * self))`.

    Torch's decomposition subtracts 1 from a sigmoid, which leaves no digits of small gradients.
    """
    gradient = -target * grad_output * torch.sigmoid(-target * self)
    return gradient / self.numel() if reduction == Reduction.MEAN.value else gradient
