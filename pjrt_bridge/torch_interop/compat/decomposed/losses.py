"""Decompositions of losses that torch's own decompositions compute less exactly, or wrongly."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._C import DispatchKey
from torch._decomp.decompositions import (
    Reduction,
    huber_loss_backward,
    mse_loss_backward,
    multi_margin_loss,
    pw_cast_for_opmath,
)
from torch._ops import OpOverload
from torch.fx.experimental.symbolic_shapes import statically_known_true

from pjrt_bridge.torch_interop.compat.operators import by_operator, operator


def loss_decompositions() -> dict[OpOverload, Callable[..., Any]]:
    """For each operator its decomposition."""
    rules: dict[str, Callable[..., Any]] = {
        "aten.huber_loss_backward.default": _also_of_nothing(huber_loss_backward),
        "aten.mse_loss_backward.default": _also_of_nothing(mse_loss_backward),
        "aten.smooth_l1_loss_backward.default": _also_of_nothing(_smooth_backward),
        "aten.soft_margin_loss_backward.default": _soft_margin_backward,
        _MULTI: _multi_margin,
        "aten.multi_margin_loss_backward.default": _multi_margin_backward,
        _MULTILABEL: _multilabel_margin,
        "aten.multilabel_margin_loss_backward.default": _multilabel_margin_backward,
        "aten.nll_loss_backward.default": _nll_backward,
        "aten.nll_loss2d_backward.default": _nll_backward,
    }
    return by_operator(rules)


_MULTI = "aten.multi_margin_loss.default"
_MULTILABEL = "aten.multilabel_margin_loss_forward.default"


def _also_of_nothing(decomposition: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A gradient also of no elements, by whose number torch's decomposition divides."""

    def gradient(grad_output: Tensor, self: Tensor, target: Tensor, *rest: Any) -> Tensor:
        if statically_known_true(self.numel() == 0):
            return self - target
        return decomposition(grad_output, self, target, *rest)

    return gradient


@pw_cast_for_opmath
def _smooth_backward(
    grad_output: Tensor, self: Tensor, target: Tensor, reduction: int, beta: float
) -> Tensor:
    """The gradient of the smooth loss, NaN where that is.

    Torch's decomposition gives 0 there: the sign of NaN.
    """
    x = self - target
    scale = 1.0 / self.numel() if reduction == Reduction.MEAN.value else 1.0
    incoming = scale * grad_output
    return torch.where(x.abs() >= beta, incoming * x.sign(), incoming * x / beta)


@pw_cast_for_opmath
def _soft_margin_backward(
    grad_output: Tensor, self: Tensor, target: Tensor, reduction: int
) -> Tensor:
    """The gradient of `log1p(exp(-target * self))`.

    Torch's decomposition subtracts 1 from a sigmoid, which leaves no digits of small gradients.
    """
    gradient = -target * grad_output * torch.sigmoid(-target * self)
    return gradient / self.numel() if reduction == Reduction.MEAN.value else gradient


@pw_cast_for_opmath
def _nll_backward(
    grad_output: Tensor,
    self: Tensor,
    target: Tensor,
    weight: Tensor | None,
    reduction: int,
    ignore_index: int,
    total_weight: Tensor,
) -> Tensor:
    """The gradient (ATen/native/LossNLL.cpp): 0 but at the targets.

    Torch's decomposition multiplies zeros by `grad_output`: NaN where that is infinite, else zeros
    of both signs.
    """
    classes_at = 0 if self.dim() < 2 else 1
    shape = [1] * self.dim()
    shape[classes_at] = self.shape[classes_at]
    if reduction == Reduction.MEAN.value:
        grad_output = grad_output / total_weight
    if self.dim() > grad_output.dim() > 0:
        grad_output = grad_output.unsqueeze(classes_at)
    if weight is not None:
        grad_output = grad_output * weight.reshape(shape)
    # Of one row, ATen reads the first target alone.
    label = (target[0] if self.dim() == 1 and target.dim() > 0 else target).unsqueeze(classes_at)
    classes = torch.arange(self.shape[classes_at], device=self.device).reshape(shape)
    return torch.where((classes == label) & (label != ignore_index), -grad_output, 0)


def _multilabel_margin(input: Tensor, target: Tensor, reduction: int) -> tuple[Tensor, Tensor]:
    """The loss (ATen/native/LossMultiLabelMargin.cpp), and which elements are targets.

    Torch's decomposition (2.13) counts what is behind the -1 that ends a list of targets.
    """
    if input.dim() > 2 or 0 in input.shape[-1:] or target.shape != input.shape:
        raise RuntimeError(
            "multilabel_margin_loss: expected a vector or a matrix with elements, and as many "
            f"labels, found sizes {tuple(input.shape)} and {tuple(target.shape)}"
        )
    _, is_target, margins, counted = _label_margins(input, target)
    loss = torch.where(counted, margins / margins.shape[2], 0).sum((1, 2))
    if reduction == Reduction.MEAN.value:
        loss = loss.mean()
    elif reduction == Reduction.SUM.value or input.dim() < 2:
        loss = loss.sum()
    return loss, is_target.to(input.dtype).reshape(target.shape)


def _label_margins(input: Tensor, target: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(rows, labels): the labels, 0 for those not listed, and which elements are targets.

    (rows, labels, elements): the margins, and which of them count.
    """
    rows, labels = (
        (input, target) if input.dim() == 2 else (input.reshape(1, -1), target.reshape(1, -1))
    )
    count = rows.shape[1]
    places = torch.arange(count, device=target.device)
    end = torch.where(labels < 0, places, count).amin(1, keepdim=True)
    listed = places < end
    index = torch.where(listed, labels, 0)
    chosen = rows.gather(1, index)
    is_target = (places == torch.where(listed, labels, -1).unsqueeze(2)).any(1)
    margins = 1 - chosen.unsqueeze(2) + rows.unsqueeze(1)
    counted = listed.unsqueeze(2) & ~is_target.unsqueeze(1) & (margins > 0)
    return index, is_target, margins, counted


def _multilabel_margin_backward(
    grad_output: Tensor, self: Tensor, target: Tensor, reduction: int, is_target: Tensor
) -> Tensor:
    index, _, _, counted = _label_margins(self, target)
    counts = counted.to(self.dtype)
    found = counts.sum(1) - torch.zeros_like(counts[:, 0]).scatter_add(1, index, counts.sum(2))
    return _scaled_rows(found, grad_output, reduction).reshape(self.shape)


def _multi_margin(
    input: Tensor,
    target: Tensor,
    p: float = 1,
    margin: float = 1,
    weight: Tensor | None = None,
    reduction: int = Reduction.MEAN.value,
) -> Tensor:
    """The loss (ATen/native/LossMultiMargin.cpp): margins that are NaN do not count.

    In torch's decomposition they do.
    """
    # It checks the sizes. Nothing else of it stays in a graph.
    multi_margin_loss(input, target, p, margin, weight, reduction)
    index, margins, counted = _margins(input, target, margin)
    margins = torch.where(counted, margins, 0)
    losses = margins if p == 1 else margins * margins
    found = (losses if weight is None else losses * weight[index]).mean(1)
    if reduction == Reduction.NONE.value:
        return found.reshape(target.shape)
    return found.mean() if reduction == Reduction.MEAN.value else found.sum()


def _margins(input: Tensor, target: Tensor, margin: float) -> tuple[Tensor, Tensor, Tensor]:
    """(rows, 1): targets. (rows, classes): the margins, and which of them count."""
    rows = input.reshape(-1, input.shape[-1])
    index = target.reshape(-1, 1)
    margins = margin - rows.gather(1, index) + rows
    classes = torch.arange(rows.shape[1], device=target.device)
    return index, margins, (margins > 0) & (classes != index)


def _multi_margin_backward(
    grad_output: Tensor,
    self: Tensor,
    target: Tensor,
    p: float,
    margin: float,
    weight: Tensor | None = None,
    reduction: int = Reduction.MEAN.value,
) -> Tensor:
    """The gradient (ATen/native/LossMultiMargin.cpp); `p` is 1 or 2."""
    index, margins, counted = _margins(self, target, margin)
    slopes = torch.where(counted, torch.ones_like(margins) if p == 1 else 2 * margins, 0)
    if weight is not None:
        slopes = slopes * weight[index]
    found = slopes.scatter_add(1, index, -slopes.sum(1, keepdim=True))
    return _scaled_rows(found, grad_output, reduction).reshape(self.shape)


def _scaled_rows(gradients: Tensor, grad_output: Tensor, reduction: int) -> Tensor:
    """Of means over the elements of each row, and over the rows if the loss is reduced so."""
    rows, count = gradients.shape
    scale = count * rows if reduction == Reduction.MEAN.value else count
    return gradients * (grad_output.reshape(-1, 1) / scale)


def _correct_margins() -> None:
    """Have all tracing use these: torch gives its own decompositions before a backend is asked."""
    for name, rule in ((_MULTILABEL, _multilabel_margin), (_MULTI, _multi_margin)):
        op = operator(name)
        if op is not None and DispatchKey.Autograd in op.py_kernels:
            op.py_kernels[DispatchKey.Autograd] = rule
            op._dispatch_cache.clear()


_correct_margins()
