"""Random operators that are kept on the host draw there as eager does, wherever the rest runs."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.torch_interop.helpers import assert_same
from tests.torch_interop.mixed import operators as ops
from tests.torch_interop.mixed.support import device_segments, mixed

KEPT = [
    "aten.bernoulli",
    "aten.native_dropout",
    "aten.normal_functional",
    "aten.rand",
    "aten.rand_like",
    "aten.randint",
    "aten.randn",
    "aten.randn_like",
    "aten.randperm",
    "aten.uniform",
]


def kept(function: Callable[..., Any]) -> Any:
    """The function compiled, all that is random in it left to PyTorch."""
    return mixed(function, options={"host_ops": KEPT})


pytestmark = pytest.mark.filterwarnings("ignore::pjrt_bridge.errors.HostFallbackWarning")


def several(x: Tensor) -> Any:
    a = torch.rand_like(x.exp()).cos()
    b = torch.randn(3, 4)
    c = torch.randint(0, 10, (4,)) + x
    d = torch.bernoulli(x.sigmoid()) * a
    return a, b.sin(), c, d, torch.randperm(5) + 1


def in_turns(x: Tensor) -> Any:
    """Each draw depends on the device part before it; the last depends on nothing."""
    for _ in range(4):
        x = torch.bernoulli(x.sigmoid()) + x.cos()
    return x, torch.rand(3) + 1


def late_before_early(x: Tensor) -> Any:
    """The first draw stands behind more changes between device and host than the second."""
    a = ops.twice(ops.twice(x.exp()).cos())
    a = a + torch.randn_like(a.sin())
    return a.cos(), torch.rand(3, 4) * x


def drop(x: Tensor) -> Any:
    y = nn.functional.dropout(x.exp(), 0.5)
    return nn.functional.dropout(ops.twice(y).tanh(), 0.3).cos() + y


def in_place(x: Tensor) -> Any:
    y = x.exp()
    y[1:].normal_(2, 3)
    x.uniform_()
    return y.cos(), ops.twice(x)


@pytest.mark.parametrize("function", [several, in_turns, late_before_early, drop, in_place])
def test_numbers_and_the_state_afterwards_are_those_of_eager(
    function: Callable[[Tensor], Any],
) -> None:
    def draws(run: Callable[[Tensor], Any]) -> list[Any]:
        torch.manual_seed(4)
        found = [run(torch.randn(3, 4)) for _ in range(3)]
        return [found, torch.rand(5), torch.get_rng_state()]

    run = kept(function)
    assert_same(draws(run), draws(function))
    assert_same(draws(run), draws(run), rtol=0, atol=0)
    assert sum(device_segments()) >= 1


def test_training_with_dropout() -> None:
    model = nn.Sequential(
        nn.Linear(4, 8), nn.Dropout(0.5), nn.Tanh(), nn.Linear(8, 4), nn.Dropout(0.2)
    )

    def step(run: Callable[[Tensor], Tensor], seed: int) -> list[Any]:
        torch.manual_seed(seed)
        model.zero_grad()
        loss = run(torch.randn(6, 4)).square().mean()
        loss.backward()
        gradients = [p.grad.clone() for p in model.parameters() if p.grad is not None]
        return [loss.detach(), *gradients, torch.get_rng_state()]

    run = kept(model)
    for seed in range(3):
        assert_same(step(run, seed), step(model, seed))
    assert len(device_segments()) == 2
    assert all(device_segments())


def test_a_generator_of_its_own() -> None:
    def function(x: Tensor, generator: torch.Generator) -> Any:
        a = torch.rand(3, 4, generator=generator)
        return ops.twice(a * x).cos() + torch.rand(1)

    def draws(run: Callable[..., Any]) -> list[Any]:
        torch.manual_seed(1)
        generator = torch.Generator().manual_seed(7)
        x = torch.randn(3, 4)
        return [run(x, generator), run(x, generator), generator.get_state(), torch.get_rng_state()]

    assert_same(draws(kept(function)), draws(function))
