"""Operators whose result's size or value depends on data, with graph breaks and in one graph."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.torch_interop.helpers import assert_same
from tests.torch_interop.mixed import operators as ops
from tests.torch_interop.mixed.support import check, device_segments, mixed

pytestmark = pytest.mark.filterwarnings("ignore::pjrt_bridge.errors.HostFallbackWarning")


def nonzero(x: Tensor) -> Any:
    return (x.exp() - 1).nonzero().float().sum(0) * 2 + x.sum()


def found_places(x: Tensor) -> Any:
    return (x.exp() - 1 > 0).nonzero() + 1, x.cos()


def unique(x: Tensor) -> Any:
    values, places = torch.unique((x * 2).round(), return_inverse=True)
    return values.exp(), places + 1


def selected(x: Tensor) -> Any:
    y = torch.masked_select(x.exp(), x > 0)
    return y.cos() * 2, y.sum() + x


def indexed(x: Tensor) -> Any:
    return x.exp()[x > 0].cos().sum() * x


def repeated(x: Tensor) -> Any:
    times = (x > 0).to(torch.int64).cumsum(0)
    return torch.repeat_interleave(x.exp(), times).cos() - 1


def scalar(x: Tensor) -> Any:
    total = x.exp().sum().item()
    return x.cos() * total


def custom(x: Tensor) -> Any:
    return ops.positives(x.exp() - 1).cos() + 1


def counted(x: Tensor) -> Any:
    return x.cos() * ops.count(x.exp() - 1)


FUNCTIONS = [nonzero, found_places, unique, selected, indexed, repeated, scalar, custom, counted]


def inputs() -> list[Tensor]:
    """Some positive elements, none; one element, which is, and no element at all."""
    torch.manual_seed(0)
    return [torch.randn(7), -torch.ones(7), torch.ones(1), torch.zeros(0)]


@pytest.mark.parametrize("function", [unique, selected, scalar])
def test_with_graph_breaks(function: Callable[[Tensor], Any]) -> None:
    run = mixed(function)
    for x in inputs():
        assert_same(run(x), function(x))
    assert sum(device_segments()) >= 2


@pytest.mark.parametrize("function", FUNCTIONS)
def test_in_one_graph(function: Callable[[Tensor], Any]) -> None:
    """Device work stands before and after the operator, and both parts run there.

    A number that is multiplied with stays a tensor there, and the graph whole.
    """
    least = 1 if function is scalar else 2
    with torch._dynamo.config.patch(
        capture_dynamic_output_shape_ops=True, capture_scalar_outputs=True
    ):
        run = mixed(function, fullgraph=True)
        for index, x in enumerate(inputs()):
            assert_same(run(x), function(x))
            assert index or device_segments()[0] >= least, device_segments()


def test_a_size_from_data() -> None:
    def function(x: Tensor, n: Tensor) -> Any:
        size = n.item()
        torch._check(size >= 0)
        torch._check(size <= x.shape[0])
        return x.exp()[:size].cos(), torch.zeros(size) + 1, size

    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        run = mixed(function, fullgraph=True)
        for n in (3, 0, 4, 1):
            arguments = (torch.randn(4), torch.tensor(n))
            check(function, *arguments, run=run, segments=1)


def test_a_number_that_is_returned() -> None:
    def function(x: Tensor, n: Tensor) -> Any:
        number = n.item()
        return x.exp() * number, number, number + 1

    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        run = mixed(function, fullgraph=True)
        for n in (3, 0, -2):
            check(function, torch.randn(4), torch.tensor(n), run=run)


def test_a_check_that_fails_raises_what_eager_raises() -> None:
    def function(x: Tensor, n: Tensor) -> Any:
        size = n.item()
        torch._check(size >= 2, lambda: "too small")
        return x.exp() * size

    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        run = mixed(function, fullgraph=True)
        x = torch.randn(4)
        assert_same(run(x, torch.tensor(3)), function(x, torch.tensor(3)))
        with pytest.raises(RuntimeError):
            run(x, torch.tensor(1))
        assert_same(run(x, torch.tensor(2)), function(x, torch.tensor(2)))


def test_gradients_through_a_selection() -> None:
    def function(x: Tensor, w: Tensor) -> Tensor:
        return ((x @ w).tanh().flatten()[(x.sum(1) > 0).nonzero().flatten()] * 3).sum()

    def step(run: Callable[..., Tensor], seed: int) -> list[Any]:
        torch.manual_seed(seed)
        x, w = torch.randn(5, 3), torch.randn(3, 1, requires_grad=True)
        loss = run(x, w)
        loss.backward()
        return [loss, w.grad]

    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        run = mixed(function, fullgraph=True)
        for seed in range(3):
            assert_same(step(run, seed), step(function, seed))
    assert sum(device_segments()) >= 2, device_segments()
