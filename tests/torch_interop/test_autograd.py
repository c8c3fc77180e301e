"""Autograd around compiled graphs, in every way that users drive it."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from tests.torch_interop.helpers import (
    TRAINING,
    assert_compiled,
    assert_same,
    assert_same_gradients,
    compiled,
    twins,
)

pytestmark = [
    pytest.mark.usefixtures("fresh"),
    # Dynamo looks at `grad` of every tensor that it traces, and makes an instance of Function.
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),
    pytest.mark.filterwarnings("ignore:<class 'torch.autograd.function.Function'> should not"),
]


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 6), nn.Sigmoid())


def two_forwards_then_backward(model: nn.Module, x: torch.Tensor) -> None:
    first, second = model(x), model(x * 2)
    (first * second).sum().backward()


def two_backwards(model: nn.Module, x: torch.Tensor) -> None:
    loss = model(x).square().sum()
    loss.backward(retain_graph=True)
    loss.backward()


def two_backwards_after_a_single_one(model: nn.Module, x: torch.Tensor) -> None:
    # What the first call compiles must not take it for granted that backward runs once.
    model(x).square().sum().backward()
    two_backwards(model, x)


def accumulation(model: nn.Module, x: torch.Tensor) -> None:
    for part in x.chunk(3):
        (model(part).mean() / 3).backward()


def model_of_model(model: nn.Module, x: torch.Tensor) -> None:
    model(model(x)).sum().backward()


def checkpointed(model: nn.Module, x: torch.Tensor) -> None:
    checkpoint(model, x, use_reentrant=False).square().sum().backward()


def transposed_tangent(model: nn.Module, x: torch.Tensor) -> None:
    y = model(x)
    y.backward(torch.arange(36.0).view(6, 6).t())


def expanded_tangent(model: nn.Module, x: torch.Tensor) -> None:
    model(x).backward(torch.tensor([2.0]).expand(6, 6))


def tangent_with_gaps(model: nn.Module, x: torch.Tensor) -> None:
    model(x).backward(torch.randn(6, 12, generator=torch.Generator().manual_seed(1))[:, ::2])


def gradient_of_the_input(model: nn.Module, x: torch.Tensor) -> None:
    x = x.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(model(x).sum(), x)
    model(gradient).sum().backward()


def only_some_rows(model: nn.Module, x: torch.Tensor) -> None:
    model(x)[2:4, 1].sum().backward()


DRIVERS = [
    two_forwards_then_backward,
    two_backwards,
    two_backwards_after_a_single_one,
    accumulation,
    model_of_model,
    checkpointed,
    transposed_tangent,
    expanded_tangent,
    tangent_with_gaps,
    gradient_of_the_input,
    only_some_rows,
]


@pytest.mark.parametrize("drive", DRIVERS)
def test_gradients_agree_with_eager(drive: Callable[[nn.Module, torch.Tensor], None]) -> None:
    eager, device = twins(perceptron())
    x = torch.randn(6, 6)
    for model in (eager, device):
        drive(model, x)
    assert_same_gradients(device, eager)


def test_checkpoint_inside_of_the_graph() -> None:
    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = perceptron()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return checkpoint(self.inner, x, use_reentrant=False) * 2

    eager, device = twins(Checkpointed())
    x = torch.randn(4, 6)
    for model in (eager, device):
        model(x).square().sum().backward()
    assert_same_gradients(device, eager)
    assert_compiled(*TRAINING)


@pytest.mark.parametrize(
    "unused", [0, 1, 2], ids=["all but the first", "all but the second", "all but the third"]
)
def test_a_loss_that_uses_some_of_the_outputs(unused: int) -> None:
    weight = torch.randn(3, 3, requires_grad=True)

    def function(x: torch.Tensor) -> Any:
        return x @ weight, weight.exp(), (x * weight).detach(), x > 0

    x, gradients = torch.randn(3, 3), []
    for candidate in (function, compiled(function)):
        results = candidate(x)
        assert [result.requires_grad for result in results] == [True, True, False, False]
        weight.grad = None
        sum(r.sum() for i, r in enumerate(results[:2]) if i != unused).backward()
        gradients.append(weight.grad)
    assert_same(gradients[1], gradients[0])
    assert_compiled(*TRAINING)


def test_switching_between_training_and_inference() -> None:
    eager, device = twins(perceptron())
    x = torch.randn(4, 6)
    for _ in range(2):
        for model in (eager, device):
            model.zero_grad()
            model(x).sum().backward()
        assert_same_gradients(device, eager)
        with torch.no_grad():
            found = device(x)
        assert not found.requires_grad
        assert_same(found, eager(x).detach())
        with torch.inference_mode():
            found = device(x)
        assert found.is_inference()
        assert_same(found.clone(), eager(x).detach())
    assert_compiled(*TRAINING, "inference", "inference")


def test_parameters_that_are_inference_tensors() -> None:
    with torch.inference_mode():
        model = perceptron()
        x = torch.randn(4, 6)
        device = compiled(model)
        assert_same(device(x), model(x))
        next(model.parameters()).mul_(2)
        assert_same(device(x), model(x))
    assert_compiled("inference")


def test_autocast_computes_in_bfloat16() -> None:
    eager, device = twins(perceptron())
    x = torch.randn(4, 6)
    for model in (eager, device):
        with torch.autocast("cpu", torch.bfloat16):
            result = model(x)
        assert result.dtype == torch.bfloat16
        result.float().square().sum().backward()
    for one, other in zip(device.parameters(), eager.parameters(), strict=True):
        assert one.grad is not None
        assert one.grad.dtype == torch.float32
        torch.testing.assert_close(one.grad, other.grad, rtol=0.05, atol=0.02)
    assert_compiled(*TRAINING)


def test_autocast_inside_of_the_graph() -> None:
    def function(x: torch.Tensor) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            y = x @ x
        return y, x @ x

    x = torch.randn(8, 8)
    low, high = compiled(function)(x)
    assert (low.dtype, high.dtype) == (torch.bfloat16, torch.float32)
    torch.testing.assert_close(low, function(x)[0], rtol=0.02, atol=0.02)
    assert_same(high, x @ x)
    assert_compiled("inference")


def test_changing_a_parameter_before_backward_is_found() -> None:
    model = perceptron()
    device, x = compiled(model), torch.randn(4, 6)
    loss = device(x).square().sum()
    with torch.no_grad():
        list(model.parameters())[2].add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("dynamic", [None, True])
def test_many_gradients_at_once(dynamic: bool | None) -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return ((x @ w).sin() * x[:, :1]).cumsum(0)

    on_device = torch.compile(function, backend="pjrt", dynamic=dynamic)
    for size in (3, 4, 5):
        inputs = [torch.randn(size, 4, requires_grad=True), torch.randn(4, 3, requires_grad=True)]
        many = torch.randn(6, size, 3)
        for _ in range(2):
            found, expected = (
                torch.autograd.grad(of(*inputs), inputs, many, is_grads_batched=True)
                for of in (on_device, function)
            )
            assert_same(found, expected, rtol=1e-5, atol=1e-5)
            found, expected = (
                torch.autograd.grad(of(*inputs), inputs, many[0]) for of in (on_device, function)
            )
            assert_same(found, expected, rtol=1e-5, atol=1e-5)


def test_a_backward_that_checks_a_matrix_for_singularity() -> None:
    """The gradient of eigenvalues solves a system, whose check is an effect of the graph."""

    def function(a: torch.Tensor) -> torch.Tensor:
        return torch.linalg.eigvals(a).abs().sort().values

    x = torch.randn(2, 4, 4)
    inputs = [x.clone().requires_grad_() for _ in range(2)]
    for one, of in zip(inputs, (compiled(function), function), strict=True):
        of(one).square().sum().backward()
    assert_same(inputs[0].grad, inputs[1].grad, rtol=1e-3, atol=1e-3)


def test_hooks_and_a_user_defined_function() -> None:
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            return gradient * 5

    seen: list[torch.Tensor] = []
    x = torch.ones(3, requires_grad=True)
    y = compiled(lambda x: Double.apply(x) * 3)(x)
    y.register_hook(seen.append)
    y.sum().backward()
    assert torch.equal(x.grad, torch.full((3,), 15.0))
    assert torch.equal(seen[0], torch.ones(3))
    assert_compiled(*TRAINING)
