"""What a training step copies, and for how long it keeps what forward saves."""

import gc
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import nn, optim

from pjrt_bridge.mixed.execution import CallRecord
from pjrt_bridge.runtime.ownership.exit import live
from pjrt_bridge.torch_interop import compiled_graphs
from pjrt_bridge.torch_interop.bind import graphs
from pjrt_bridge.torch_interop.bind.adapter import TorchAdapter
from tests.torch_interop.helpers import compiled

pytestmark = [
    pytest.mark.usefixtures("fresh"),
    # Torch's own, while it traces an optimizer.
    pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated:DeprecationWarning"),
]

WIDTH = 192
"""Weights of more bytes than are copied without asking."""


def perceptron() -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(WIDTH, WIDTH, bias=False), nn.GELU()) for _ in range(3)]
    return nn.Sequential(*layers)


def test_gradients_and_new_parameters_are_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    model = perceptron()
    forward = compiled(model)
    optimizer = optim.AdamW(model.parameters(), lr=1e-3)
    step = compiled(optimizer.step)
    given: dict[str, list[int]] = {}
    run = graphs.DeviceGraph.run

    def watched(graph: graphs.DeviceGraph, arguments: list[Any], call: CallRecord) -> Sequence[Any]:
        results = run(graph, arguments, call)
        tensors = [item for item in results if isinstance(item, torch.Tensor)]
        given[graph.record.kind] = [item.data_ptr() for item in tensors]
        return results

    copied: list[int] = []
    original = TorchAdapter.assign

    def assign(self: TorchAdapter, target: torch.Tensor, value: torch.Tensor) -> None:
        copied.append(0 if target.data_ptr() == value.data_ptr() else value.nbytes)
        original(self, target, value)

    monkeypatch.setattr(graphs.DeviceGraph, "run", watched)
    monkeypatch.setattr(TorchAdapter, "assign", assign)
    x = torch.randn(64, WIDTH)
    weights = [parameter.data_ptr() for parameter in model.parameters()]
    for _ in range(3):
        optimizer.zero_grad()
        forward(x).square().mean().backward()
        gradients = [parameter.grad for parameter in model.parameters()]
        assert {g.data_ptr() for g in gradients if g is not None} <= set(given["backward"])
        assert None not in gradients
        before = [parameter.detach().clone() for parameter in model.parameters()]
        copied.clear()
        step()
        # Weights and both of their moments; the counts of steps are numbers.
        assert sum(size == 0 for size in copied) == 9
        assert sum(copied) <= 3 * 4
        after = list(model.parameters())
        assert not any(torch.equal(*pair) for pair in zip(before, after, strict=True))
    assert [parameter.data_ptr() for parameter in model.parameters()] == weights
    reports = compiled_graphs()
    assert {report.kind for report in reports} == {"forward", "backward", "inference"}
    for report in reports:
        assert [segment.placement for segment in report.segments] == ["device"]
        assert sum(segment.bytes_copied for segment in report.segments) == 0
        assert sum(segment.bytes_shared for segment in report.segments) > 9 * WIDTH * WIDTH


def buffers() -> int:
    """How many of the plugin's buffers there are, and with them their memory."""
    gc.collect()
    return live().get("Buffer", 0)


def test_backward_keeps_nothing_of_what_forward_saved() -> None:
    model = perceptron()
    forward = compiled(model)
    x = torch.randn(64, WIDTH)
    forward(x).square().mean().backward()
    model.zero_grad()
    before = buffers()
    loss = forward(x).square().mean()
    # At the least what each activation takes.
    assert buffers() >= before + 3
    loss.backward()
    gradients = sum(1 for _ in model.parameters())
    # The loss, and with it the graph of autograd, is still there.
    assert buffers() <= before + gradients + 1
    del loss
    model.zero_grad()
    assert buffers() == before


def test_what_is_saved_is_there_for_a_second_backward() -> None:
    model = perceptron()
    forward = compiled(model)
    x = torch.randn(64, WIDTH)
    forward(x).square().mean().backward()
    single = [item.grad for item in model.parameters()]
    model.zero_grad()
    loss = forward(x).square().mean()
    loss.backward(retain_graph=True)
    loss.backward()
    for parameter, gradient in zip(model.parameters(), single, strict=True):
        assert parameter.grad is not None
        assert gradient is not None
        torch.testing.assert_close(parameter.grad, 2 * gradient)
