"""Models on the device are exported as models of the host, and stay where they are."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import nn

import pjrt_bridge
from pjrt_bridge.errors import NotExportable
from pjrt_bridge.torch_interop import export


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 3)
        self.norm = nn.BatchNorm1d(3)
        self.register_buffer("scale", torch.tensor([1.0, 2.0, 3.0]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        # Torch puts the device into the graph.
        steps = torch.arange(3, device=x.device)
        return self.norm(self.inner(x)) * self.scale + steps


@pytest.fixture
def net() -> Net:
    return Net().eval()


X = torch.randn(16, 4)


@pytest.mark.parametrize("traced", [False, True])
def test_inference(traced: bool, net: Net) -> None:
    there = copy.deepcopy(net).to("pjrt")
    x = X.to("pjrt")
    program = torch.export.export(there, (x,)) if traced else there
    model = export(program) if traced else export(there, (x,))
    with model.load_on(pjrt_bridge.client("cpu")) as loaded:
        np.testing.assert_allclose(np.asarray(loaded(X)), net(X).detach(), rtol=1e-5, atol=1e-6)
    state = program.state_dict if traced else there.state_dict()
    assert {value.device.type for value in dict(state).values()} == {"pjrt"}


def test_training(net: Net) -> None:
    there = copy.deepcopy(net).train().to("pjrt")
    model = export(there, (X.to("pjrt"),), training=True, loss=lambda found: found.square().mean())
    net.train()(X).square().mean().backward()
    with model.load_on(pjrt_bridge.client("cpu")) as loaded:
        found = loaded(X)["gradients"]
    np.testing.assert_allclose(
        np.asarray(found["inner.weight"]), net.inner.weight.grad, rtol=1e-4, atol=1e-5
    )
    optimizer = torch.optim.SGD(there.parameters(), lr=0.1)
    with pytest.raises(NotExportable, match=r"parameters on pjrt:0, expected the host"):
        export(there, (X.to("pjrt"),), training=True, loss=torch.sum, optimizer=optimizer)
