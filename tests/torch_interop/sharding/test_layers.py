"""Kinds of layers over a mesh, whose gradients are those of PyTorch on the host."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import nn

from pjrt_bridge.torch_interop.sharding import (
    Mesh,
    full,
    fully_shard,
    parallelize,
    sharding_of,
)

pytestmark = pytest.mark.usefixtures("fresh")


def check_gradients(
    model: nn.Module, mesh: Mesh, divide: Callable[[nn.Module, Mesh], object], x: torch.Tensor
) -> None:
    """Compare a step over the mesh with PyTorch; gradients lie as their parameters."""
    expected = copy.deepcopy(model)
    divide(model, mesh)
    options = {"mesh": mesh, "fallback": "error"}
    compiled = torch.compile(model, backend="pjrt", fullgraph=True, options=options)
    compiled(x.to("pjrt")).square().mean().backward()
    expected(x).square().mean().backward()
    for (name, one), other in zip(model.named_parameters(), expected.parameters(), strict=True):
        assert one.grad is not None
        assert other.grad is not None
        assert sharding_of(one.grad) == sharding_of(one), name
        torch.testing.assert_close(full(one.grad), other.grad, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("divide", [parallelize, fully_shard])
@pytest.mark.parametrize("groups", [2, 8])
def test_convolutions_with_groups(mesh: Mesh, groups: int, divide: Callable[..., object]) -> None:
    model = nn.Conv2d(8, 8, 3, stride=2, groups=groups)
    check_gradients(model, mesh, divide, torch.randn(8, 8, 8, 8))
