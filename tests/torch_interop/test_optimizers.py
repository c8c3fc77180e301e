"""Optimizer steps compiled as a graph: on the device, new values written where the old ones lie."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn, optim

from pjrt_bridge.torch_interop import compiled_graphs
from pjrt_bridge.torch_interop.bind.adapter import TorchAdapter
from tests.torch_interop.helpers import assert_same, leaves

pytestmark = [
    pytest.mark.usefixtures("fresh"),
    # Torch's own, while it traces an optimizer.
    pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*lr scheduler:UserWarning"),
]

OPTIMIZERS: dict[str, Callable[[Any], optim.Optimizer]] = {
    "SGD": lambda p: optim.SGD(p, lr=0.1),
    "SGD with momentum": lambda p: optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "Adam": lambda p: optim.Adam(p, lr=1e-2),
    "Adam with amsgrad": lambda p: optim.Adam(p, lr=1e-2, amsgrad=True),
    "AdamW": lambda p: optim.AdamW(p, lr=1e-2),
    "Adamax": lambda p: optim.Adamax(p, lr=1e-2),
    "NAdam": lambda p: optim.NAdam(p, lr=1e-2),
    "RAdam": lambda p: optim.RAdam(p, lr=1e-2),
    "Adagrad": lambda p: optim.Adagrad(p, lr=1e-2),
    "Adadelta": lambda p: optim.Adadelta(p),
    "RMSprop": lambda p: optim.RMSprop(p, lr=1e-2, momentum=0.5, centered=True),
    "Rprop": lambda p: optim.Rprop(p),
    "ASGD": lambda p: optim.ASGD(p, lr=1e-2),
    "Muon": lambda p: optim.Muon(p, lr=1e-2),
}


def models() -> tuple[nn.Module, nn.Module]:
    """The same twice; each weight is larger than what is copied."""
    model = nn.Sequential(nn.Linear(150, 130, bias=False), nn.Linear(130, 140, bias=False))
    return model, copy.deepcopy(model)


def train(model: nn.Module, step: Callable[[], Any], x: torch.Tensor) -> None:
    model.zero_grad()
    model(x).square().mean().backward()
    step()


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_steps_agree_with_eager(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    copied: list[int] = []

    def assign(self: TorchAdapter, target: torch.Tensor, value: torch.Tensor) -> None:
        if target.data_ptr() != value.data_ptr():
            copied.append(target.numel())
        original(self, target, value)

    original = TorchAdapter.assign
    monkeypatch.setattr(TorchAdapter, "assign", assign)
    ours, theirs = models()
    ours_optimizer, theirs_optimizer = (
        OPTIMIZERS[name](model.parameters()) for model in (ours, theirs)
    )
    step = torch.compile(ours_optimizer.step, backend="pjrt", options={"fallback": "error"})
    for _ in range(4):
        x = torch.randn(20, 150)
        train(ours, step, x)
        train(theirs, theirs_optimizer.step, x)
    # Muon computes in bfloat16.
    atol = 1e-3 if name == "Muon" else 1e-4
    assert_same(list(ours.parameters()), list(theirs.parameters()), rtol=1e-4, atol=atol)
    for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        state = theirs_optimizer.state[other]
        if leaves(state):
            assert_same(ours_optimizer.state[one], state, rtol=1e-3, atol=1e-4)
    assert compiled_graphs()
    # Counters of steps are copied, weights and their statistics are not.
    assert max(copied, default=1) == 1


def test_a_learning_rate_that_is_a_tensor_changes_without_compiling_again() -> None:
    ours, theirs = models()
    rate = torch.tensor(0.1)
    compiled_optimizer = optim.Adam(ours.parameters(), lr=rate, foreach=False)
    eager = optim.Adam(theirs.parameters(), lr=0.1)
    step = torch.compile(compiled_optimizer.step, backend="pjrt", options={"fallback": "error"})
    for value in (0.1, 0.05, 0.01, 0.2):
        rate.fill_(value)
        eager.param_groups[0]["lr"] = value
        x = torch.randn(20, 150)
        train(ours, step, x)
        train(theirs, eager.step, x)
    assert_same(list(ours.parameters()), list(theirs.parameters()), rtol=1e-3, atol=1e-4)
    assert len(compiled_graphs()) == 1


def test_a_whole_training_step_of_a_compiled_model_and_optimizer() -> None:
    ours, theirs = models()
    run = torch.compile(ours, backend="pjrt", options={"fallback": "error"})
    compiled_optimizer = optim.AdamW(ours.parameters(), lr=1e-2)
    eager = optim.AdamW(theirs.parameters(), lr=1e-2)
    step = torch.compile(compiled_optimizer.step, backend="pjrt", options={"fallback": "error"})
    losses = []
    x = torch.randn(20, 150)
    for _ in range(6):
        ours.zero_grad()
        loss = run(x).square().mean()
        loss.backward()
        step()
        losses.append(loss.item())
        train(theirs, eager.step, x)
    assert losses == sorted(losses, reverse=True)
    assert_same(list(ours.parameters()), list(theirs.parameters()), rtol=1e-3, atol=1e-4)
