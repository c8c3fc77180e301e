"""A compiled update over a mesh writes into the memory of what it renews, on each device."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from pjrt_bridge.runtime import ShardedBuffer
from pjrt_bridge.torch_interop.resident.storages.storage import contents_of
from pjrt_bridge.torch_interop.sharding import Mesh, mark_sharding, sharding_of

pytestmark = pytest.mark.usefixtures("fresh")

SHAPE = (256, 512)


def addresses(tensor: torch.Tensor) -> list[int]:
    found = contents_of(tensor).buffer
    assert isinstance(found, ShardedBuffer)
    return [part.address for part in found.shards]


@pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated:DeprecationWarning")
@pytest.mark.parametrize("spec", [("dp", "tp"), (None, "tp"), ()])
def test_parameters_and_states_keep_their_memory(mesh: Mesh, spec: tuple[str | None, ...]) -> None:
    x = torch.randn(SHAPE)
    weight = nn.Parameter(x.clone())
    other = nn.Parameter(x.clone())
    mark_sharding(weight, mesh, spec)
    optimizers = [torch.optim.SGD([one], lr=0.1, momentum=0.9) for one in (weight, other)]
    step = torch.compile(optimizers[0].step, backend="pjrt", options={"mesh": mesh})
    held: list[list[int]] = []
    for _ in range(4):
        weight.grad = mark_sharding(x, mesh, spec)
        other.grad = x.clone()
        step()
        optimizers[1].step()
        torch.testing.assert_close(weight.detach().cpu(), other.detach())
        state = optimizers[0].state[weight]["momentum_buffer"]
        assert sharding_of(state) == sharding_of(weight.detach())
        held.append([*addresses(weight.detach()), *addresses(state)])
    # The first steps make the states.
    assert held[-1] == held[-2]


def test_what_another_tensor_holds_is_kept(mesh: Mesh) -> None:
    def add(x: torch.Tensor) -> torch.Tensor:
        return x.add_(1)

    x = torch.randn(SHAPE)
    given = mark_sharding(x, mesh, ("dp", "tp"))
    step = torch.compile(add, backend="pjrt", fullgraph=True, options={"mesh": mesh})
    for count in range(3):
        averages = [copy.deepcopy(given), given.clone(), torch.empty_like(given).copy_(given)]
        step(given)
        for one in averages:
            torch.testing.assert_close(one.cpu(), x + count)
        torch.testing.assert_close(given.cpu(), x + count + 1)
