"""Programs while the device is torch's default: what the bridge makes for itself is on the host."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

pytestmark = pytest.mark.usefixtures("fresh")

ROOT = Path(__file__).parents[3]

FACTORIES = {
    "arange",
    "as_tensor",
    "asarray",
    "empty",
    "empty_strided",
    "eye",
    "full",
    "linspace",
    "logspace",
    "ones",
    "rand",
    "randint",
    "randn",
    "randperm",
    "scalar_tensor",
    "tensor",
    "tril_indices",
    "triu_indices",
    "zeros",
}
"""Functions of torch that make tensors on the default device unless they are given one."""


@pytest.fixture
def on_the_device() -> Iterator[None]:
    torch.set_default_device("pjrt")
    yield
    torch.set_default_device(None)


@pytest.mark.usefixtures("on_the_device")
def test_sizes_that_change() -> None:
    layers = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 4))
    run = torch.compile(lambda x: layers(x).mean(0) + x.shape[0] * x.sum(0), backend="pjrt")
    for length in (5, 7, 3, 12, 7):
        x = torch.randn(length, 4)
        torch.testing.assert_close(run(x), layers(x).mean(0) + length * x.sum(0))


@pytest.mark.usefixtures("on_the_device")
def test_numbers_that_change() -> None:
    run = torch.compile(
        lambda x, k: (x * k, x[:k], nn.functional.dropout(x * k, 0.0)), backend="pjrt"
    )
    x = torch.arange(9.0)
    for k in (2, 5, 3, 7):
        times, first, kept = run(x, k)
        assert times.device.type == first.device.type == "pjrt"
        torch.testing.assert_close(times, x * k)
        torch.testing.assert_close(first, x[:k])
        torch.testing.assert_close(kept, x * k)


@pytest.mark.usefixtures("on_the_device")
def test_graphs_over_host_tensors() -> None:
    run = torch.compile(lambda x, k: (x * k + x.shape[0]).cumsum(0), backend="pjrt")
    for length in (5, 7, 3, 12):
        x = torch.randn(length, device="cpu")
        found = run(x, length / 2)
        assert found.device.type == "cpu"
        torch.testing.assert_close(found, (x * (length / 2) + length).cumsum(0))


@pytest.mark.parametrize("package", ["pjrt_bridge", "plugins"])
def test_own_tensors_name_their_device(package: str) -> None:
    """They would be on the default device otherwise, whose memory the host cannot read."""
    silent = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in (ROOT / package).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id == "torch"
        and node.func.attr in FACTORIES
        and not any(each.arg in ("device", None) for each in node.keywords)
    ]
    assert not silent
