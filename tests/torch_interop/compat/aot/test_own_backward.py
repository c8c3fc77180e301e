"""Results that are views, with hooks or backward functions of the user's on their way."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import pad

pytestmark = [
    pytest.mark.usefixtures("fresh"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),
]


class Reversed(torch.autograd.Function):
    """As domain-adversarial training reverses gradients."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return -gradient


class Rest(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x[:, 1:]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return pad(gradient * 3, (1, 0))


def _reversed_alone(x: Tensor) -> Any:
    return Reversed.apply(x)


def _reversed_and_flat(x: Tensor) -> Any:
    return Reversed.apply(x).view(-1)


def _flat_and_reversed(x: Tensor) -> Any:
    return Reversed.apply(x.view(-1, 1, 2)).flatten()


def _reversed_beside_its_source(x: Tensor) -> Any:
    y = x * 2
    return Reversed.apply(y), y, Reversed.apply(y).view(-1)


def _reversed_features(x: Tensor) -> Any:
    features = (x * 2).tanh()
    return features.sum(1), Reversed.apply(features.view(-1))


def _rest(x: Tensor) -> Any:
    y = x * 2
    return Rest.apply(y), y.t(), Rest.apply(x).t()


def _hook(x: Tensor) -> Any:
    v = x.view(-1)
    v.register_hook(lambda gradient: gradient * 3)
    return v


def _hook_before_a_break(x: Tensor) -> Any:
    v = x.view(-1)
    v.register_hook(lambda gradient: gradient * 3)
    torch._dynamo.graph_break()
    return v * 2


def _hook_and_views(x: Tensor) -> Any:
    v = x.view(-1)
    v.register_hook(lambda gradient: gradient * 3)
    return v[1:], v.view(2, -1), x.t()


def _hooks_in_a_row(x: Tensor) -> Any:
    y = x * 2
    v = y.view(-1)
    v.register_hook(lambda gradient: gradient * 3)
    w = v[1:]
    w.register_hook(lambda gradient: gradient + 1)
    return v, y, w


def _hook_of_no_view(x: Tensor) -> Any:
    y = x * 2
    y.register_hook(lambda gradient: gradient * 3)
    return y.view(-1), y


FUNCTIONS: tuple[Callable[..., Any], ...] = (
    _reversed_alone,
    _reversed_and_flat,
    _flat_and_reversed,
    _reversed_beside_its_source,
    _reversed_features,
    _rest,
    _hook,
    _hook_before_a_break,
    _hook_and_views,
    _hooks_in_a_row,
    _hook_of_no_view,
)


def seen(function: Callable[..., Any], x: Tensor) -> Any:
    """Results, who shares memory with whom, and the gradient."""
    leaf = x.clone().requires_grad_()
    given = leaf if x.shape[0] == 2 else leaf * 1
    results = function(given)
    results = results if isinstance(results, tuple) else (results,)
    total = torch.zeros(())
    for number, result in enumerate(results):
        weights = torch.arange(1.0, result.numel() + 1).view(result.shape)
        total = total + (result * weights).sum() * (number + 1)
    total.backward()
    places = [item.untyped_storage().data_ptr() for item in (given, *results)]
    shared = [one == other for one, other in itertools.combinations(places, 2)]
    return [item.detach().clone() for item in results], shared, leaf.grad


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("dynamic", [False, True])
def test_gradients_and_memory_are_as_in_eager_mode(
    function: Callable[..., Any], dynamic: bool
) -> None:
    on_device = torch.compile(function, backend="pjrt", dynamic=dynamic)
    for rows in (2, 4, 6):
        x = torch.randn(rows, 2)
        results, shared, gradient = seen(on_device, x)
        expected, sharing, wanted = seen(function, x)
        torch.testing.assert_close(results, expected)
        torch.testing.assert_close(gradient, wanted)
        assert shared == sharing


@pytest.mark.parametrize(
    "function", [function for function in FUNCTIONS if "hook" not in function.__name__]
)
def test_without_gradients(function: Callable[..., Any]) -> None:
    on_device = torch.compile(function, backend="pjrt")
    x = torch.randn(2, 2)
    torch.testing.assert_close(on_device(x), function(x))
