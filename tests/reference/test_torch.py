"""Models on the reference plugin: a device with memory of its own, without hardware."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn
from torch._dynamo.exc import BackendCompilerFailed
from torch.testing._internal.two_tensor import TwoTensor

from pjrt_bridge import registry
from tests.reference.test_registry import PROJECT
from tests.registry.conftest import Site

HOSTED = """
    from dataclasses import replace
    import pjrt_bridge_reference

    @hookimpl
    def pjrt_bridge_plugins():
        reference = pjrt_bridge_reference.pjrt_bridge_plugins()
        return replace(reference, name="hosted", options={"host_memory": True})
    """
"""The same plugin, with devices that use host memory: programs are launched by the dispatcher."""


@pytest.fixture(autouse=True)
def _fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    project = tomllib.loads(PROJECT.read_text())["project"]
    site = Site(tmp_path)
    site.install(project["name"], entry_points=project["entry-points"])
    site.hook("hosted", "hosted", HOSTED)
    monkeypatch.syspath_prepend(str(tmp_path))
    registry.refresh()
    torch.compiler.reset()
    yield
    torch.compiler.reset()
    registry.refresh()


OPTIONS = {"plugin": "reference", "fallback": "error"}


@pytest.mark.parametrize("name", ["reference", "hosted"])
def test_a_model_learns_as_it_does_in_pytorch(name: str) -> None:
    options = OPTIONS | {"plugin": name}
    torch.manual_seed(0)
    x, y = torch.randn(8, 5), torch.randn(8, 3)
    losses, gradients = [], []
    for compiled in (False, True):
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 3), nn.Softmax(-1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        run = torch.compile(model, backend="pjrt", options=options) if compiled else model
        for _ in range(3):
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(run(x), y)
            loss.backward()
            optimizer.step()
        losses.append(loss.item())
        gradients.append([parameter.grad for parameter in model.parameters()])
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    for expected, found in zip(*gradients, strict=True):
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("name", ["reference", "hosted"])
def test_inputs_that_are_written(name: str) -> None:
    def step(state: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        state.mul_(0.5).add_(x)
        return state.sum()

    run = torch.compile(step, backend="pjrt", options=OPTIONS | {"plugin": name})
    state = torch.ones(4)
    assert run(state, torch.ones(4)).item() == 6
    assert run(state, torch.ones(4)).item() == 7
    assert state.tolist() == [1.75] * 4


def test_what_the_interpreter_cannot_do_is_said() -> None:
    run = torch.compile(torch.fft.fft, backend="pjrt", options=OPTIONS)
    with pytest.raises(BackendCompilerFailed, match=r"FallbackForbidden: .*stablehlo\.fft"):
        run(torch.ones(4))


def test_parameters_that_are_subclasses_learn() -> None:
    """An optimizer writes into the tensors within them, whose versions do not move."""
    losses = []
    for compiled in (False, True):
        torch.manual_seed(0)
        model = nn.Linear(3, 2)
        model.weight = nn.Parameter(TwoTensor(model.weight.detach(), model.weight.detach().clone()))
        run = torch.compile(model, backend="pjrt", options=OPTIONS) if compiled else model
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            loss = run(torch.ones(2, 3)).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach().a.item())
    assert losses[:3] == pytest.approx(losses[3:], rel=1e-5)
    assert losses[2] < losses[0] / 2
