"""Logarithms of softmax over many classes: what backward is given, numbers, which ones."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from pjrt_bridge.torch_interop.passes import log_softmax

ROWS, CLASSES = 6, 40


@pytest.fixture(autouse=True)
def _large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_softmax, "LEAST", ROWS * CLASSES)
    torch._dynamo.reset()


def scores(dtype: torch.dtype = torch.float32) -> Tensor:
    drawn = torch.randn(ROWS, CLASSES, generator=torch.Generator().manual_seed(0)) * 5
    return drawn.to(dtype)


TARGETS = torch.tensor([3, 0, 39, -100, 7, 7])

LOSSES: dict[str, Callable[[Tensor], Tensor]] = {
    "cross entropy": lambda x: functional.cross_entropy(x, TARGETS),
    "smoothed labels": lambda x: functional.cross_entropy(x, TARGETS, label_smoothing=0.2),
    "weights of classes": lambda x: functional.cross_entropy(
        x, TARGETS, weight=torch.linspace(0, 1, CLASSES).to(x.dtype)
    ),
    "probabilities": lambda x: functional.cross_entropy(x, x.detach().flip(0).softmax(1)),
    "other dimension": lambda x: functional.nll_loss(functional.log_softmax(x, 0), TARGETS),
    "returned": lambda x: functional.log_softmax(x, 1) * 2,
    "in float32": lambda x: functional.log_softmax(x, 1, dtype=torch.float32),
    "divergence": lambda x: functional.kl_div(
        functional.log_softmax(x, 1), x.detach().flip(1).softmax(1), reduction="batchmean"
    ),
}


TOLERANCES = {torch.float32: 1e-5, torch.float64: 1e-9}


def both_ways(loss: Callable[[Tensor], Tensor], x: Tensor) -> tuple[Tensor, Tensor]:
    leaf = x.clone().requires_grad_()
    found = loss(leaf)
    found.float().square().sum().backward()
    assert leaf.grad is not None
    return found.detach(), leaf.grad


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", LOSSES)
def test_losses_and_gradients(name: str, dtype: torch.dtype) -> None:
    loss = LOSSES[name]
    found = both_ways(torch.compile(loss, backend="pjrt"), scores(dtype))
    # Eager rounds between the operators of a gradient.
    expected = both_ways(loss, scores(dtype).double())
    near = TOLERANCES[torch.float32 if name == "in float32" else dtype]
    for got, wanted in zip(found, expected, strict=True):
        torch.testing.assert_close(got.double(), wanted.double(), rtol=near, atol=near)


@pytest.mark.parametrize("name", LOSSES)
def test_half_precision_is_rounded_as_by_the_operator(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    loss, x = LOSSES[name], scores(torch.bfloat16)
    found = both_ways(torch.compile(loss, backend="pjrt"), x)
    monkeypatch.setattr(log_softmax, "LEAST", 1 << 60)
    torch._dynamo.reset()
    expected = both_ways(torch.compile(loss, backend="pjrt"), x)
    for got, wanted in zip(found, expected, strict=True):
        torch.testing.assert_close(got, wanted, rtol=2**-8, atol=1e-6)


def test_special_numbers() -> None:
    x = scores()
    x[0, 0], x[1, 5], x[4] = torch.inf, torch.nan, -torch.inf
    loss = LOSSES["returned"]
    compiled = torch.compile(loss, backend="pjrt")
    for got, wanted in zip(both_ways(compiled, x), both_ways(loss, x), strict=True):
        torch.testing.assert_close(got, wanted, equal_nan=True)


def saved_by(loss: Callable[[Tensor], Tensor]) -> list[Tensor]:
    """What the compiled loss of computed scores saves for backward."""
    torch._dynamo.reset()
    saved: list[Tensor] = []

    def keep(tensor: Tensor) -> Tensor:
        saved.append(tensor)
        return tensor

    weight = torch.eye(CLASSES, requires_grad=True)
    compiled = torch.compile(lambda x, w: loss(x.flip(0) @ w), backend="pjrt")
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        compiled(scores(), weight)
    return saved


def test_backward_is_given_the_scores() -> None:
    saved = saved_by(LOSSES["cross entropy"])
    (large,) = (item for item in saved if item.shape == (ROWS, CLASSES))
    torch.testing.assert_close(large, scores().flip(0))


def test_a_small_one_stays_one_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_softmax, "LEAST", ROWS * CLASSES + 1)
    logarithm = functional.log_softmax(scores().flip(0), 1)
    assert any(
        item.shape == logarithm.shape and torch.allclose(item, logarithm)
        for item in saved_by(LOSSES["cross entropy"])
    )
