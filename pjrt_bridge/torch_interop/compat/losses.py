"""Decompositions of losses that torch's own decompositions compute less exactly, or wrongly."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._C import DispatchKey
from torch._decomp.decompositions import Reduction, pw_cast_for_opmath
from torch._ops import OpOverload

from pjrt_bridge.torch_interop.compat.operators import operator


def loss_decompositions() -> dict[OpOverload, Callable[..., Any]]:
    """For each operator its decomposition."""
    rules = {
        "aten.soft_margin_loss_backward.default": _soft_margin_backward,
        _MULTILABEL: _multilabel_margin,
    }
    found = {operator(name): rule for name, rule in rules.items()}
    return {op: rule for op, rule in found.items() if op is not None}


_MULTILABEL = "aten.multilabel_margin_loss_forward.default"


@pw_cast_for_opmath
def _soft_margin_backward(
    grad_output: Tensor, self: Tensor, target: Tensor, reduction: int
) -> Tensor:
    """The gradient of `log1p(exp(-target * self))`.

    Torch's decomposition subtracts 1 from a sigmoid, which leaves no digits of small gradients.
    """
    gradient = -target * grad_output * torch.sigmoid(-target * self)
    return gradient / self.numel() if reduction == Reduction.MEAN.value else gradient


def _multilabel_margin(input: Tensor, target: Tensor, reduction: int) -> tuple[Tensor, Tensor]:
    """The loss (ATen/native/LossMultiLabelMargin.cpp), and which elements are targets.

    Torch's decomposition (2.13) counts what is behind the -1 that ends a list of targets.
    """
    if input.dim() > 2 or 0 in input.shape[-1:] or target.shape != input.shape:
        raise RuntimeError(
            "multilabel_margin_loss: expected a vector or a matrix with elements, and as many "
            f"labels, found sizes {tuple(input.shape)} and {tuple(target.shape)}"
        )
    rows, labels = (
        (input, target) if input.dim() == 2 else (input.reshape(1, -1), target.reshape(1, -1))
    )
    count = rows.shape[1]
    places = torch.arange(count, device=target.device)
    end = torch.where(labels < 0, places, count).amin(1, keepdim=True)
    listed = places < end
    chosen = rows.gather(1, torch.where(listed, labels, 0))
    is_target = (places == torch.where(listed, labels, -1).unsqueeze(2)).any(1)
    margins = 1 - chosen.unsqueeze(2) + rows.unsqueeze(1)
    counted = listed.unsqueeze(2) & ~is_target.unsqueeze(1) & (margins > 0)
    loss = torch.where(counted, margins / count, 0).sum((1, 2))
    if reduction == Reduction.MEAN.value:
        loss = loss.mean()
    elif reduction == Reduction.SUM.value or input.dim() < 2:
        loss = loss.sum()
    return loss, is_target.to(input.dtype).reshape(target.shape)


def _correct_multilabel_margin() -> None:
    """Have all tracing use it: torch gives its own decomposition before a backend is asked."""
    op = operator(_MULTILABEL)
    if op is not None and DispatchKey.Autograd in op.py_kernels:
        op.py_kernels[DispatchKey.Autograd] = _multilabel_margin
        op._dispatch_cache.clear()


_correct_multilabel_margin()
