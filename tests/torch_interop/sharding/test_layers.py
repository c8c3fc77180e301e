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
    mark_sharding,
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


class Experts(nn.Module):
    """Four layers, each over all rows; the gradient of the weight is computed transposed."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 16, 32))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(rows, 16) to (rows, 4, 32)."""
        return torch.einsum("nd,edf->nef", x, self.weight).relu()


@pytest.mark.parametrize("spec", [("tp",), (None, "tp"), (None, None, "tp")])
def test_gradients_that_lie_otherwise(mesh: Mesh, spec: tuple[str | None, ...]) -> None:
    def divide(model: nn.Module, mesh: Mesh) -> None:
        mark_sharding(model.weight, mesh, spec)

    check_gradients(Experts(), mesh, divide, torch.randn(8, 16))


def test_views_in_another_order_stay_divided(mesh: Mesh) -> None:
    x = torch.randn(4, 6, 8)
    given = mark_sharding(x, mesh, ("dp", None, "tp"))
    moved = given.permute(1, 2, 0).contiguous()
    torch.testing.assert_close(full(moved), x.permute(1, 2, 0))
    assert sharding_of(moved) == sharding_of(given.permute(1, 2, 0))
    assert not sharding_of(moved).is_replicated
    before = sharding_of(given)
    given.permute(2, 0, 1).copy_(moved.permute(1, 2, 0) + 1)
    assert sharding_of(given) == before
    torch.testing.assert_close(full(given), x + 1)
