"""Gradients of losses have eager's digits where they are small."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import soft_margin_loss

from tests.torch_interop.helpers import compiled


def soft_margins(x: torch.Tensor, target: torch.Tensor) -> list[torch.Tensor]:
    return [soft_margin_loss(x, target, reduction=kind) for kind in ("mean", "sum", "none")]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_soft_margin_loss_of_what_is_far_from_the_margin(dtype):
    x = torch.tensor([-80.0, -15.0, -1.0, 0.0, 1.0, 15.0, 80.0], dtype=dtype, requires_grad=True)
    target = torch.ones_like(x)
    pairs = zip(compiled(soft_margins)(x, target), soft_margins(x, target), strict=True)
    for losses in pairs:
        grads = [torch.autograd.grad(loss.sum(), x, retain_graph=True)[0] for loss in losses]
        # No absolute tolerance: the smallest gradient is 1e-35.
        torch.testing.assert_close(*grads, rtol=4 * torch.finfo(dtype).eps, atol=0.0)
