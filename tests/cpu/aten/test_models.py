"""Whole models with calls: inference and training beside eager mode."""

from __future__ import annotations

import copy
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from tests.cpu.aten.comparing import assert_close
from tests.torch_interop.helpers import compiled

pytestmark = pytest.mark.usefixtures("always", "fresh")


class Residual(nn.Module):
    """A block of a ResNet that halves the image."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(8, 16, 3, stride=2, padding=1, bias=False)
        self.second = nn.Conv2d(16, 16, 3, padding=1, bias=False)
        self.beside = nn.Conv2d(8, 16, 1, stride=2, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(16) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norms[0](self.first(x)).relu()
        y = self.norms[1](self.second(y)) + self.norms[2](self.beside(x))
        return y.relu()


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 64), nn.Linear(64, 10))


def transformer() -> nn.Module:
    return nn.TransformerEncoderLayer(
        32, 4, 64, dropout=0.0, batch_first=True, norm_first=True, activation="gelu"
    )


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], str]] = {
    "residual": (Residual, (3, 8, 16, 16), "mkldnn_convolution.default"),
    "transformer": (
        transformer,
        (2, 12, 32),
        "_scaled_dot_product_flash_attention_for_cpu.default",
    ),
    "perceptron": (perceptron, (9, 32), "mm.out"),
}
LOOSE = {torch.float32: 1e-4, torch.bfloat16: 0.15}
"""Length of the difference, in lengths of what is expected: roundings move a ReLU's corner."""
CASES = [
    pytest.param(name, dtype, marks=pytest.mark.slow if dtype == torch.bfloat16 else ())
    for name in MODELS
    for dtype in LOOSE
]


def close(found: torch.Tensor, expected: torch.Tensor) -> None:
    left, right = found.detach().double(), expected.detach().double()
    assert found.dtype == expected.dtype
    assert float((left - right).norm()) <= LOOSE[expected.dtype] * max(float(right.norm()), 1e-2)


@pytest.mark.parametrize(("name", "dtype"), CASES)
def test_inference(name: str, dtype: torch.dtype, written: Counter[str]) -> None:
    make, shape, operator = MODELS[name]
    model = make().to(dtype).eval()
    x = torch.randn(shape).to(dtype)
    with torch.no_grad():
        # The layer would take a path of its own, of one operator, where nothing is differentiated.
        torch.backends.mha.set_fastpath_enabled(False)
        try:
            close(compiled(model)(x), model(x))
        finally:
            torch.backends.mha.set_fastpath_enabled(True)
    assert written[operator] or written["linear.out"]


@pytest.mark.parametrize(("name", "dtype"), CASES)
def test_training(name: str, dtype: torch.dtype, written: Counter[str]) -> None:
    make, shape, operator = MODELS[name]
    model = make().to(dtype)
    other = copy.deepcopy(model)
    step = compiled(other)
    x = torch.randn(shape).to(dtype)
    ours, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
    found, expected = step(ours), model(theirs)
    close(found, expected)
    seed = torch.randn_like(expected)
    found.backward(seed)
    expected.backward(seed)
    assert ours.grad is not None
    assert theirs.grad is not None
    close(ours.grad, theirs.grad)
    for left, right in zip(other.parameters(), model.parameters(), strict=True):
        assert left.grad is not None
        assert right.grad is not None
        close(left.grad, right.grad)
    for left, right in zip(other.buffers(), model.buffers(), strict=True):
        close(left, right) if left.is_floating_point() else assert_close(left, right)
    assert written[operator]


def test_steps_with_adamw(written: Counter[str]) -> None:
    model = perceptron()
    other = copy.deepcopy(model)
    x, target = torch.randn(64, 32), torch.randint(0, 10, (64,))

    def steps(model: nn.Module, wrap: Callable[..., Any]) -> list[float]:
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        forward = wrap(lambda x: nn.functional.cross_entropy(model(x), target))
        losses = []
        for _ in range(5):
            optimizer.zero_grad()
            loss = forward(x)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses

    expected = steps(model, lambda function: function)
    assert steps(other, compiled) == pytest.approx(expected, rel=1e-3)
    assert expected[-1] < expected[0]
    for left, right in zip(other.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(left, right, rtol=0, atol=2e-3)
    assert written["mm.out"]
    assert written["_log_softmax.out"]


@pytest.mark.slow
def test_the_next_process_loads_such_programs_and_computes_the_same() -> None:
    def run() -> tuple[int, str]:
        command = [sys.executable, "-m", "tests.cpu.aten.one_process"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=True)
        compiled, loaded, numbers = done.stdout.split()
        assert int(compiled) + int(loaded) >= 3
        return int(loaded), numbers

    first, second = run(), run()
    assert first[0] == 0
    # What compiles in no time is not kept.
    assert second[0] >= 1
    assert first[1] == second[1]
