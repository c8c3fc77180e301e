"""Parameters that are written into, replaced or resized between calls."""

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from pjrt_bridge.mixed.segment import DeviceSegment
from pjrt_bridge.runtime import ClientCore
from pjrt_bridge.runtime.buffers import putting
from pjrt_bridge.runtime.ownership.exit import live
from pjrt_bridge.torch_interop import compiled_graphs
from tests.torch_interop.helpers import (
    assert_same,
    assert_same_gradients,
    compiled,
    twins,
)

pytestmark = pytest.mark.usefixtures("fresh")


def test_parameters_are_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 16)), torch.randn(16, 16)
    put: list[int] = []
    original = putting.put_host

    def spy(client: ClientCore, host: Any, **how: Any) -> Any:
        buffer = original(client, host, **how)
        put.append(host.address)
        assert buffer.address == host.address
        return buffer

    monkeypatch.setattr(putting, "put_host", spy)
    device = compiled(model)
    parameters = {parameter.data_ptr() for parameter in model.parameters()}
    with torch.no_grad():
        device(x)
        assert parameters <= set(put) <= {*parameters, x.data_ptr()}
        put.clear()
        device(x)
        assert set(put) <= {x.data_ptr()}
    device(x).sum().backward()
    assert parameters <= set(put)
    put.clear()
    device(x).sum().backward()
    assert not parameters & set(put)
    assert all(
        segment.bytes_copied == 0 < segment.bytes_shared
        for graph in compiled_graphs()
        for segment in graph.segments
    )


def test_parameters_are_not_saved_for_backward(monkeypatch: pytest.MonkeyPatch) -> None:
    """A transposed weight among the saved activations would be a copy of it in each step."""
    saved: list[int] = []
    run = DeviceSegment.run

    def spy(self: DeviceSegment, *arguments: Any) -> Any:
        saved.extend(result.type.nbytes for result in self.bindings.results)
        return run(self, *arguments)

    model = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64))
    monkeypatch.setattr(DeviceSegment, "run", spy)
    compiled(model)(torch.randn(2, 64))
    assert saved
    assert max(saved) == 2 * 64 * 4


def optimizer_step(model: nn.Linear) -> None:
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    torch.optim.AdamW(model.parameters(), lr=0.1).step()


def write_into_data(model: nn.Linear) -> None:
    model.weight.data.mul_(-2)


def assign_data(model: nn.Linear) -> None:
    model.weight.data = torch.full((3, 4), 2.0)
    model.bias.data = torch.arange(7.0)[1:4]


def assign_parameter(model: nn.Linear) -> None:
    model.weight = nn.Parameter(torch.full((3, 4), 5.0))


def load_state(model: nn.Linear) -> None:
    model.load_state_dict({"weight": torch.ones(3, 4), "bias": torch.zeros(3)})


def load_state_by_assignment(model: nn.Linear) -> None:
    model.load_state_dict({"weight": torch.ones(3, 4), "bias": torch.zeros(3)}, assign=True)


def resize_storage(model: nn.Linear) -> None:
    storage = model.weight.untyped_storage()
    values, size = model.weight.detach().clone(), storage.nbytes()
    storage.resize_(0)
    storage.resize_(size)
    with torch.no_grad():
        model.weight.copy_(values + 1)


def grow(model: nn.Linear) -> None:
    model.weight = nn.Parameter(torch.randn(5, 4))
    model.bias = nn.Parameter(torch.randn(5))


def transpose(model: nn.Linear) -> None:
    model.weight = nn.Parameter(torch.randn(4, 3).t())


def freeze(model: nn.Linear) -> None:
    model.weight.requires_grad_(False)


CHANGES = [
    optimizer_step,
    write_into_data,
    assign_data,
    assign_parameter,
    load_state,
    load_state_by_assignment,
    resize_storage,
    grow,
    transpose,
    freeze,
]


@pytest.mark.parametrize("change", CHANGES)
def test_changed_parameters_are_seen(way: str, change: Callable[[nn.Linear], None]) -> None:
    model, x = nn.Linear(4, 3), torch.randn(2, 4)
    device = compiled(model)
    for changing in (lambda _: None, change, optimizer_step):
        changing(model)
        seen = []
        for candidate in (model, device):
            model.zero_grad()
            result = candidate(x)
            result.sum().backward()
            seen.append([result.detach(), *(p.grad for p in model.parameters())])
        assert_same(seen[1], seen[0])


def test_frozen_and_thawed(way: str) -> None:
    eager, device = twins(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)))
    x = torch.randn(2, 4)
    for frozen in (True, False, True):
        for model in (eager, device):
            next(model.parameters()).requires_grad_(not frozen)
            model.zero_grad()
            model(x).sum().backward()
        assert (next(device.parameters()).grad is None) == frozen
        assert_same_gradients(device, eager)


def test_reset_gives_back_the_memory_of_a_dropped_model() -> None:
    def run() -> None:
        model = nn.Linear(32, 32)
        with torch.no_grad():
            compiled(model)(torch.randn(2, 32))
        assert live().get("Buffer", 0) >= before + 2

    gc.collect()
    before = live().get("Buffer", 0)
    run()
    torch.compiler.reset()
    gc.collect()
    assert live().get("Buffer", 0) == before
