"""Losses whose decompositions are the bridge's own."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional
from torch.nn.functional import nll_loss, soft_margin_loss

from tests.torch_interop.helpers import compiled


def soft_margins(x: torch.Tensor, target: torch.Tensor) -> list[torch.Tensor]:
    return [soft_margin_loss(x, target, reduction=kind) for kind in ("mean", "sum", "none")]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_soft_margin_loss_of_what_is_far_from_the_margin(dtype):
    x = torch.tensor([-80.0, -15.0, -1.0, 0.0, 1.0, 15.0, 80.0], dtype=dtype, requires_grad=True)
    target = torch.ones_like(x)
    pairs = zip(compiled(soft_margins)(x, target), soft_margins(x, target), strict=True)
    for losses in pairs:
        grads = [torch.autograd.grad(loss.sum(), x, retain_graph=True)[0] for loss in losses]
        # No absolute tolerance: the smallest gradient is 1e-35.
        torch.testing.assert_close(*grads, rtol=4 * torch.finfo(dtype).eps, atol=0.0)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize(
    "options", [{}, {"p": 2, "margin": 0.4}, {"weight": [0.5, 2.0, 1.0, 0.0]}], ids=str
)
def test_margins_of_several_classes_on_the_device(options: dict[str, Any], reduction: str) -> None:
    for shape in ((5, 4), (4,)):
        x = torch.randn(shape)
        target = torch.tensor([0, 3, 1, 1, 2] if len(shape) == 2 else 3)
        found = []
        for device in ("cpu", "pjrt"):
            given = x.to(device).detach().requires_grad_()
            more = dict(options)
            if "weight" in more:
                more["weight"] = torch.tensor(more["weight"], device=device)
            loss = torch.nn.functional.multi_margin_loss(
                given, target.to(device), reduction=reduction, **more
            )
            loss.sum().backward()
            assert given.grad is not None
            found.append((loss.detach().cpu(), given.grad.cpu()))
        torch.testing.assert_close(found[1], found[0])


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("p", [1, 2])
@pytest.mark.parametrize("weighted", [False, True])
def test_margins_that_are_nan_do_not_count(p: int, weighted: bool, reduction: str) -> None:
    infinite, nan = torch.inf, torch.nan
    x = torch.tensor(
        [
            [infinite, infinite, 1.0, -infinite],
            [nan, 1.0, 2.0, infinite],
            [0.0, nan, -infinite, 2.0],
            [-infinite, -infinite, 1.0, 2.0],
        ],
        requires_grad=True,
    )
    weight = torch.tensor([0.0, 1.0, 2.0, 0.5]) if weighted else None
    target = torch.tensor([0, 1, 2, 0])

    def loss(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.multi_margin_loss(
            x, target, p=p, margin=0.5, weight=weight, reduction=reduction
        )

    found, expected = compiled(loss)(x), loss(x)
    torch.testing.assert_close(found, expected, equal_nan=True)
    gradients = [torch.autograd.grad(made.sum(), x)[0] for made in (found, expected)]
    torch.testing.assert_close(*gradients, equal_nan=True)


def test_the_loss_of_one_row_has_no_dimension():
    def loss(x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.multi_margin_loss(x, target, reduction="none")

    x = torch.randn(4, requires_grad=True)
    for target in (torch.tensor(2), torch.tensor([2])):
        torch.testing.assert_close(compiled(loss)(x, target), loss(x, target))


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("device", ["cpu", "pjrt"])
@pytest.mark.parametrize(
    "labels",
    [
        [[1, 2, -1, 0, 0], [3, -1, 1, 2, 4], [-1, 0, 1, 2, 3]],
        [[0, 1, 2, 3, 4]] * 3,
        [4, 0, -1, 1, 2],
    ],
    ids=["lists that end", "all", "one row"],
)
def test_lists_of_labels_end_at_the_first_that_is_negative(
    labels: list[Any], device: str, reduction: str
) -> None:
    def loss(x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.multilabel_margin_loss(x, target, reduction=reduction)

    target = torch.tensor(labels)
    x = torch.randn(target.shape, requires_grad=True)
    expected = loss(x, target)
    expected.sum().backward()
    functions = [torch.compile(loss, backend="pjrt"), *([loss] if device == "pjrt" else [])]
    for function in functions:
        given = x.detach().to(device).requires_grad_()
        found = function(given, target.to(device))
        found.sum().backward()
        torch.testing.assert_close(found.cpu(), expected)
        torch.testing.assert_close(given.grad.cpu(), x.grad)  # type: ignore[union-attr]
        with torch.no_grad():
            torch.testing.assert_close(function(given, target.to(device)).cpu(), expected)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("shape", [(4, 3), (3,), (2, 3, 2, 2)], ids=str)
@pytest.mark.parametrize("weighted", [False, True])
def test_gradients_beside_targets_are_zero(shape, reduction, weighted):
    x = torch.log_softmax(torch.arange(math.prod(shape)).sin().reshape(shape), -1)
    labels = torch.tensor([1, 2, -100, 0, 2, 1, 0, 0])
    target = (
        labels[: math.prod(shape) // 3].reshape(*shape[:1], *shape[2:]) if shape[1:] else labels[0]
    )
    weight = torch.tensor([0.5, 2.0, 0.0]) if weighted else None
    for scale in (-1.0, 2.0, math.inf, math.nan):
        found = []
        for function in (compiled(nll_loss), nll_loss):
            given = x.clone().requires_grad_()
            loss = function(given, target, weight, reduction=reduction)
            loss.backward(torch.full_like(loss, scale))
            found.append(given.grad)
        torch.testing.assert_close(*found, equal_nan=True)
        numbers = ~found[1].isnan()
        assert torch.equal(found[0].signbit() & numbers, found[1].signbit() & numbers)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(
    "loss", [functional.huber_loss, functional.mse_loss, functional.smooth_l1_loss]
)
def test_losses_of_no_elements_have_gradients(
    loss: Callable[..., torch.Tensor], dynamic: bool
) -> None:
    run = torch.compile(lambda x, y: loss(x, y), backend="pjrt", dynamic=dynamic)
    for rows in (3, 0, 4):
        x, y = torch.randn(rows, 2, requires_grad=True), torch.randn(rows, 2)
        (expected,) = torch.autograd.grad(loss(x, y), x)
        found = run(x, y)
        assert found.isnan() == (rows == 0)
        torch.testing.assert_close(torch.autograd.grad(found, x), (expected,))


@pytest.mark.parametrize("beta", [0.5, math.inf])
@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_a_smooth_loss_that_is_nan_has_such_a_gradient(reduction: str, beta: float) -> None:
    def smooth(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return functional.smooth_l1_loss(x, y, reduction=reduction, beta=beta)

    x = torch.tensor([math.nan, math.inf, -math.inf, 0.0, -0.5, 0.5, 0.2, -3.0])
    y = torch.zeros(8)
    found = []
    for run in (compiled(smooth), smooth):
        given = x.clone().requires_grad_()
        run(given, y).sum().backward()
        found.append(given.grad)
    torch.testing.assert_close(*found, equal_nan=True)
