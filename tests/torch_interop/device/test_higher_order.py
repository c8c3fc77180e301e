"""Higher-order operators on resident tensors under autocast."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


def run(function: Any, device: str, *tensors: torch.Tensor) -> torch.Tensor:
    with torch.autocast(device, torch.bfloat16):
        found: torch.Tensor = function(*(item.to(device) for item in tensors))
    return found


@pytest.mark.parametrize("compiled", [False, True])
def test_branches(compiled: bool) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda x: (x @ x).sin(), lambda x: x @ x, (x,))

    on_device = torch.compile(function, backend="pjrt", fullgraph=True) if compiled else function
    for x in (torch.rand(4, 4), -torch.rand(4, 4)):
        found, expected = run(on_device, "pjrt", x), run(function, "cpu", x)
        assert found.dtype is expected.dtype is torch.bfloat16
        torch.testing.assert_close(found.cpu(), expected, rtol=0.02, atol=0.02)


@pytest.mark.parametrize("compiled", [False, True])
def test_checkpoints(compiled: bool) -> None:
    layers = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 6))
    x = torch.randn(5, 6)

    def function(x: torch.Tensor) -> torch.Tensor:
        return checkpoint(layers, x, use_reentrant=False).float().square().mean()  # type: ignore[no-any-return]

    results = []
    for device in ("cpu", "pjrt"):
        layers.to(device).zero_grad()
        on_device = device == "pjrt" and compiled
        called = torch.compile(function, backend="pjrt", fullgraph=True) if on_device else function
        loss = run(called, device, x)
        loss.backward()
        # A module that moves takes along the gradients that it has.
        results.append([loss.cpu(), *(item.grad.cpu().clone() for item in layers.parameters())])
    for expected, found in zip(*results, strict=True):
        torch.testing.assert_close(found, expected, rtol=0.05, atol=0.005)
