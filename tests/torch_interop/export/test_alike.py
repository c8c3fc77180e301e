"""Steps of optimizers that are traced for two parameters of each kind: the same programs."""

from __future__ import annotations

import cProfile
import pstats
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import fx, nn
from torch.fx.experimental.proxy_tensor import make_fx

from pjrt_bridge.exported import ExportedModel
from pjrt_bridge.runtime import Client
from pjrt_bridge.torch_interop import export
from pjrt_bridge.torch_interop.exporting.alike import (
    TracedStep,
    kinds_of,
    repeated,
    treats_each_alone,
    two_of_each,
)
from pjrt_bridge.torch_interop.exporting.optimizers import capture_update
from tests.torch_interop.export.test_training import Net, X, Y, steps

Given = list[torch.Tensor]
Optimizers = Callable[..., torch.optim.Optimizer]


class Layers(nn.Module):
    """Four layers of one size, of which two share a weight, and one of another type."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))
        self.layers[2].weight = self.layers[0].weight
        self.last = nn.Linear(8, 8).double()

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
        for layer in self.layers:
            x = layer(x).tanh()
        return {"loss": nn.functional.mse_loss(self.last(x.double()), y.double())}


@pytest.fixture
def layers() -> Layers:
    torch.manual_seed(0)
    return Layers()


def traced_whole(optimizer: Any) -> Any:
    """A class that does the same, of which the bridge does not know that."""
    return type(optimizer.__name__, (optimizer,), {})


def tensor(number: float) -> torch.Tensor:
    return torch.tensor(number)


@pytest.mark.parametrize(
    ("optimizer", "options"),
    [
        (torch.optim.SGD, {"lr": 0.125}),
        (torch.optim.SGD, {"lr": 0.125, "momentum": 0.5, "weight_decay": 0.25, "maximize": True}),
        (torch.optim.SGD, {"lr": 0.125, "momentum": 0.5, "nesterov": True, "foreach": True}),
        (torch.optim.Adam, {}),
        (torch.optim.Adam, {"lr": tensor(0.125), "betas": (tensor(0.75), tensor(0.875))}),
        (torch.optim.AdamW, {"amsgrad": True, "fused": True}),
        (torch.optim.AdamW, {"lr": tensor(0.125), "capturable": True}),
        (torch.optim.RMSprop, {"momentum": 0.5, "centered": True}),
        (torch.optim.Adadelta, {}),
        (torch.optim.Adamax, {}),
        (torch.optim.RAdam, {}),
        (torch.optim.Rprop, {}),
    ],
)
def test_programs_are_those_of_whole_steps(
    layers: Layers, optimizer: Optimizers, options: dict[str, Any]
) -> None:
    def text(optimizer: Optimizers) -> str:
        half = [layer.bias for layer in layers.layers[1:]]
        other = [weight for weight in layers.parameters() if all(weight is not one for one in half)]
        groups = [{"params": half, "weight_decay": 0.5}, {"params": other}]
        made = optimizer(groups, **options)
        return export(layers, (X, Y), training=True, optimizer=made).program.text

    assert text(optimizer) == text(traced_whole(optimizer))


def test_programs_of_a_training_that_is_under_way(layers: Layers) -> None:
    def text(optimizer: Optimizers) -> str:
        torch.manual_seed(0)
        made = optimizer(layers.parameters(), lr=0.0, momentum=0.5)
        # Some parameters have a state of their own already, which is of another kind.
        layers.zero_grad()
        layers(X, Y)["loss"].backward()
        layers.layers[1].bias.grad = None
        made.step()
        return export(layers, (X, Y), training=True, optimizer=made).program.text

    assert text(torch.optim.SGD) == text(traced_whole(torch.optim.SGD))


def test_of_many_parameters_a_few_are_traced() -> None:
    def calls(optimizer: Any, count: int) -> int:
        weights = {f"w{at}": nn.Parameter(torch.zeros(2, 2)) for at in range(count)}
        made = optimizer(weights.values())
        profile = cProfile.Profile()
        profile.enable()
        update = capture_update(made, weights)
        profile.disable()
        assert len(update.step.updates) == 4 * count
        stats: Any = pstats.Stats(profile)
        return int(stats.total_calls)

    calls(torch.optim.AdamW, 2)
    few, many = (calls(torch.optim.AdamW, count) for count in (2, 40))
    assert many < 3 * few
    assert calls(traced_whole(torch.optim.AdamW), 40) > 8 * few


class Clipped(torch.optim.SGD):
    """Divides gradients by the norm of all."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        weights = [weight for group in self.param_groups for weight in group["params"]]
        norm = torch.stack([weight.grad.norm() for weight in weights]).norm()
        for weight in weights:
            weight.sub_(weight.grad / norm / len(weights))


def test_an_optimizer_that_mixes_parameters(client: Client, tmp_path: Path) -> None:
    torch.manual_seed(0)
    net = Net()
    optimizer = Clipped(net.parameters())
    export(net, (X, Y), training=True, optimizer=optimizer).save(tmp_path)
    steps(client, net, optimizer, ExportedModel.load(tmp_path))


def test_whose_steps_are_known() -> None:
    weights = [nn.Parameter(torch.zeros(2))]
    known = [torch.optim.SGD, torch.optim.AdamW, torch.optim.Adafactor]
    assert all(treats_each_alone(one(weights)) for one in known)
    assert not treats_each_alone(Clipped(weights))
    assert not treats_each_alone(traced_whole(torch.optim.SGD)(weights))


def test_kinds() -> None:
    shapes = [(2,), (3,), (2,), (2,), (2,)]
    weights = [nn.Parameter(torch.zeros(shape)) for shape in shapes]
    groups = [{"params": weights[:3]}, {"params": weights[3:]}]
    optimizer = torch.optim.SGD(groups, lr=0.1)
    empty: list[dict[str, torch.Tensor]] = [{} for _ in shapes]
    kinds = kinds_of(optimizer, weights, empty)
    assert kinds == [[0, 2], [1], [3, 4]]
    assert two_of_each(kinds) == [0, 1, 2, 3, 4]
    assert two_of_each([[0, 2, 5, 6], [1, 3, 4]]) == [0, 1, 4, 6]
    kept = [{"m": torch.zeros(at)} for at in range(5)]
    assert kinds_of(optimizer, weights, kept) == [[at] for at in range(5)]


def step_of(
    function: Callable[[Given, Given, Given], Any], count: int, *, updates: Iterable[int]
) -> TracedStep:
    """A step that keeps one tensor for each of its parameters."""

    def flat(*given: torch.Tensor) -> Any:
        parts = (given[:count], given[count : 2 * count], given[2 * count :])
        return tuple(function(*map(list, parts)))

    module = make_fx(flat)(*(torch.ones(2) for _ in range(3 * count)))
    return TracedStep(module.graph, (), (1,) * count, tuple(updates))


def momentum(weights: Given, gradients: Given, kept: Given) -> Any:
    new = [one * 0.5 + gradient for one, gradient in zip(kept, gradients, strict=True)]
    return [*(weight - one for weight, one in zip(weights, new, strict=True)), *new]


@pytest.mark.parametrize("kinds", [[[0, 1, 2, 3, 4]], [[0, 2, 4], [1, 3]]])
def test_repeated_steps_compute_the_same(kinds: list[list[int]]) -> None:
    some = two_of_each(kinds)
    updates = (*range(len(some)), *range(2 * len(some), 3 * len(some)))
    found = repeated(step_of(momentum, len(some), updates=updates), some, kinds)
    assert found is not None
    assert found.updates == (*range(5), *range(10, 15))
    torch.manual_seed(0)
    values = [torch.randn(2) for _ in range(15)]
    expected = momentum(values[:5], values[5:10], values[10:])
    results = fx.GraphModule(nn.Module(), found.graph)(*values)
    assert all(map(torch.equal, results, expected))


def clipped(weights: Given, gradients: Given, kept: Given) -> Any:
    norm = torch.stack([one.norm() for one in gradients]).norm()
    return [one - gradient / norm for one, gradient in zip(weights, gradients, strict=True)]


def neighbours(weights: Given, gradients: Given, kept: Given) -> Any:
    return [weights[0] - gradients[0], weights[1] - gradients[0]]


def swapped(weights: Given, gradients: Given, kept: Given) -> Any:
    return [weights[1], weights[0]]


def decayed(weights: Given, gradients: Given, kept: Given) -> Any:
    return [one - gradients[at] * 0.5**at for at, one in enumerate(weights)]


def first_alone(weights: Given, gradients: Given, kept: Given) -> Any:
    return [weights[0] - gradients[0], weights[1]]


@pytest.mark.parametrize("step", [clipped, neighbours, swapped, decayed, first_alone])
def test_what_depends_on_others_or_on_the_place_is_not_repeated(step: Any) -> None:
    given = step_of(step, 2, updates=(0, 1))
    assert repeated(given, [0, 2], [[0, 1, 2]]) is None


def test_a_new_value_of_one_of_two_is_not_repeated() -> None:
    given = step_of(lambda weights, gradients, _: [weights[0] - gradients[0]], 2, updates=(0,))
    assert repeated(given, [0, 2], [[0, 1, 2]]) is None


def test_numbers_that_depend_on_data_are_not_repeated() -> None:
    weights = {f"w{at}": nn.Parameter(torch.zeros(2)) for at in range(5)}
    update = capture_update(torch.optim.Adagrad(weights.values()), weights)
    numbers = {
        str(node.meta["val"])
        for node in update.step.graph.nodes
        if "_local_scalar_dense" in str(node.target)
    }
    assert len(numbers) == 5
