"""Forward and backward both split."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.torch_interop.helpers import assert_same, assert_same_gradients
from tests.torch_interop.mixed import operators as ops
from tests.torch_interop.mixed.support import device_segments, mixed

pytestmark = pytest.mark.filterwarnings("ignore::pjrt_bridge.errors.HostFallbackWarning")


class Model(nn.Module):
    """Its forward and its backward change places twice."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(6, 6) for _ in range(3)])
        self.unused = nn.Parameter(torch.ones(2))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers[:-1]:
            x = ops.squared(ops.twice(layer(x)).tanh()) + x
        return self.layers[-1](x)


def pair() -> tuple[Model, Model, Callable[[Tensor], Tensor]]:
    """A model for eager, one for the device, and its compiled function."""
    torch.manual_seed(0)
    eager = Model()
    device = copy.deepcopy(eager)
    return eager, device, mixed(device)


def assert_trained_on_the_device() -> None:
    assert len(device_segments()) == 2
    assert all(segments >= 2 for segments in device_segments()), device_segments()


def test_steps_of_an_optimizer() -> None:
    eager, device, run = pair()
    optimizers = [torch.optim.AdamW(m.parameters(), lr=0.01) for m in (eager, device)]
    for _ in range(4):
        x = torch.randn(5, 6)
        losses = [candidate(x).square().mean() for candidate in (eager, run)]
        for loss, optimizer in zip(losses, optimizers, strict=True):
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        assert_same(losses[1], losses[0])
    assert_same(device.state_dict(), eager.state_dict(), rtol=1e-3, atol=1e-4)
    assert_trained_on_the_device()


def test_gradients_accumulate_and_the_graph_is_used_again() -> None:
    eager, device, run = pair()
    xs = [torch.randn(5, 6, requires_grad=True) for _ in range(2)]
    for candidate in (eager, run):
        first, second = candidate(xs[0]), candidate(xs[1])
        # Forward ran twice before either backward, and one backward runs twice.
        second.sum().backward()
        first.square().mean().backward(retain_graph=True)
        first.sum().backward()
        (candidate(xs[0]) * candidate(xs[0].detach())).mean().backward()
        if candidate is eager:
            expected = [x.grad for x in xs]
            for x in xs:
                x.grad = None
    assert_same([x.grad for x in xs], expected, rtol=1e-3)
    assert_same_gradients(device, eager)
    assert device.unused.grad is None
    assert all(segments >= 2 for segments in device_segments())


def test_a_step_inside_the_function() -> None:
    def function(w: Tensor, velocity: Tensor, gradient: Tensor) -> Tensor:
        with torch.no_grad():
            velocity.mul_(0.9).add_(ops.twice(gradient))
            w.sub_(velocity, alpha=0.1)
            ops.add_into(w, velocity.sign() * 0.01)
        return w.square().sum()

    run = mixed(function)
    torch.manual_seed(0)
    start = [torch.randn(4, 4, requires_grad=True), torch.zeros(4, 4)]
    sides = [copy.deepcopy(start) for _ in range(2)]
    for _ in range(3):
        gradient = torch.randn(4, 4)
        losses = [
            candidate(*side, gradient)
            for candidate, side in zip((run, function), sides, strict=True)
        ]
        assert_same([losses[0], *sides[0]], [losses[1], *sides[1]])
    assert sum(device_segments()) >= 1


def test_a_part_of_the_results_and_frozen_parameters() -> None:
    def function(x: Tensor, w: Tensor, frozen: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        y = ops.squared(x @ w)
        return y.tanh(), ops.twice(x @ frozen).cos(), y.detach() + 1

    def gradients(run: Callable[..., Any], used: int) -> list[Any]:
        torch.manual_seed(3)
        x, frozen = torch.randn(3, 4, requires_grad=True), torch.randn(4, 4)
        w = torch.randn(4, 4, requires_grad=True)
        results = run(x, w, frozen)
        results[used].t().sum(0).square().sum().backward()
        return [*results, x.grad, *([] if w.grad is None else [w.grad])]

    run = mixed(function)
    for used in (0, 1):
        found, expected = gradients(run, used), gradients(function, used)
        # A gradient of zeros takes the place of none, as with any backend of AOTAutograd.
        assert_same(found[: len(expected)], expected, rtol=1e-3)
    assert not run(torch.randn(3, 4), torch.randn(4, 4, requires_grad=True), torch.eye(4))[
        2
    ].requires_grad


def test_a_written_input_in_training() -> None:
    def function(x: Tensor, w: Tensor, seen: Tensor) -> Tensor:
        y = ops.twice(x @ w).tanh()
        seen.add_(y.detach().mean())
        return (y * seen).square().sum() + ops.twice(w).sum()

    def run_steps(run: Callable[..., Tensor]) -> list[Any]:
        torch.manual_seed(1)
        w, seen = torch.randn(4, 4, requires_grad=True), torch.zeros(1)
        for _ in range(3):
            run(torch.randn(3, 4), w, seen).backward()
        return [w.grad, seen]

    assert_same(run_steps(mixed(function)), run_steps(function), rtol=1e-3)
    assert_trained_on_the_device()


def test_an_input_that_is_written_after_forward_saved_it() -> None:
    def function(x: Tensor, w: Tensor) -> Tensor:
        y = ops.squared(x.clone()) * w.exp()
        x.mul_(2)
        return (y + ops.twice(x)).sum()

    def step(run: Callable[..., Tensor]) -> list[Any]:
        torch.manual_seed(1)
        x, w = torch.randn(3), torch.randn(3, requires_grad=True)
        loss = run(x, w)
        x.zero_()
        loss.backward()
        return [loss, w.grad, x]

    assert_same(step(mixed(function)), step(function))
