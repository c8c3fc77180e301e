"""Values that are updated on one side and read on the other; views and aliases at the border."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.torch_interop.helpers import assert_same
from tests.torch_interop.mixed import operators as ops
from tests.torch_interop.mixed.support import check, device_segments, mixed

pytestmark = pytest.mark.filterwarnings("ignore::pjrt_bridge.errors.HostFallbackWarning")


def host_then_device(x: Tensor, y: Tensor) -> Any:
    ops.add_into(x, y)
    z = x.exp()
    ops.add_into(x, z)
    return x.cos() + z


def device_then_host(x: Tensor, y: Tensor) -> Any:
    x.mul_(y)
    z = ops.twice(x)
    x.sub_(z.cos())
    return ops.twice(x) + 1


def old_value_kept(x: Tensor, y: Tensor) -> Any:
    """What reads the old value runs after what makes the new one, unless the order is kept."""
    before = ops.twice(x).cos()
    x.copy_(y.exp())
    y.copy_(ops.twice(before))
    return before


def exchanged(x: Tensor, y: Tensor) -> Any:
    old = x.clone()
    x.copy_(y)
    y.copy_(old)
    return ops.twice(x) - y.exp()


def turned_into_another(x: Tensor, y: Tensor) -> Any:
    y.copy_(x.t())
    x.add_(1)
    return ops.twice(y).cos()


def turned_into_itself(x: Tensor, y: Tensor) -> Any:
    x.copy_(ops.twice(x).t().exp())
    return x + y


def viewed_and_written(x: Tensor, y: Tensor) -> Any:
    row, column = x[1], x[:, 0]
    row.add_(y[0])
    ops.add_into(column, y[1])
    return row.cos(), column.exp(), ops.twice(x)


def returned_views(x: Tensor, y: Tensor) -> Any:
    z = ops.twice(x).cos()
    return z, x, x.t(), y[1:], x.diagonal()


def written_and_returned(x: Tensor, y: Tensor) -> Any:
    x.add_(ops.twice(y))
    return x, x[0], y.exp()


FUNCTIONS = [
    host_then_device,
    device_then_host,
    old_value_kept,
    exchanged,
    turned_into_another,
    turned_into_itself,
    viewed_and_written,
    returned_views,
    written_and_returned,
]


@pytest.mark.parametrize("function", FUNCTIONS)
def test_two_inputs(function: Callable[..., Any]) -> None:
    check(function, torch.randn(3, 3), torch.randn(3, 3), memory=True)


@pytest.mark.parametrize("function", [host_then_device, viewed_and_written, written_and_returned])
def test_two_inputs_that_lie_otherwise(function: Callable[..., Any]) -> None:
    """Column-major, and with gaps."""
    check(function, torch.randn(3, 3).t(), torch.randn(3, 6)[:, ::2], memory=True)


@pytest.mark.parametrize("function", [host_then_device, exchanged, viewed_and_written])
def test_two_inputs_that_are_one_tensor(function: Callable[..., Any]) -> None:
    x = torch.randn(3, 3) / 4
    check(function, x, x, memory=True)


def overlapping(x: Tensor, y: Tensor) -> Any:
    before = ops.twice(y)
    x.mul_(2)
    z = ops.twice(y).cos()
    y.sub_(1)
    return before, z, x.exp(), ops.twice(x)


@pytest.mark.parametrize("function", [overlapping, returned_views])
@pytest.mark.parametrize("start", [2, 3])
def test_two_inputs_that_are_views_of_one(function: Callable[..., Any], start: int) -> None:
    """With common elements, and without."""
    whole = torch.randn(6, 3) / 4
    # Each side works on copies, which autograd does not know as views: where they overlap and are
    # written into, PyTorch runs the graph.
    segments = 0 if function is overlapping and start < 3 else 1
    check(function, whole[:3], whole[start : start + 3], memory=True, segments=segments)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: (lambda y: (y, y.t(), y[1]))(ops.twice(x.exp())),
        lambda x: (lambda y: (ops.twice(y), y, y.view(-1), y))(x.exp()),
        lambda x: (lambda y: (ops.twice(y[1:]).cos(), y[1:], y[:, 2]))(x.exp()),
    ],
)
def test_results_that_share_memory_in_eager_share_it(function: Callable[[Tensor], Any]) -> None:
    check(function, torch.randn(4, 4), memory=True)


def test_results_that_do_not_share_memory_in_eager_do_not() -> None:
    def function(x: Tensor) -> Any:
        y = ops.twice(x.exp())
        return y.clone(), y, x.clone(), y + 0, y.contiguous().clone(), x * 1

    run = check(function, torch.randn(4, 4), memory=True)
    x = torch.randn(4, 4)
    kept = x.clone()
    for result in run(x):
        result.zero_()
    assert_same(x, kept)
    assert_same(run(x), function(x))


@pytest.mark.parametrize(
    "view",
    [lambda y: y[1:], lambda y: y[:, 1:3], lambda y: y[:, :1].expand(-1, 5), lambda y: y.t()],
)
def test_a_view_that_is_returned_and_read_by_operators(view: Callable[[Tensor], Tensor]) -> None:
    """Operators see strides and offset as in eager, though the view is a result as well."""

    def function(x: Tensor) -> Any:
        y = x.exp()
        seen = view(y)
        return seen, ops.strides(seen), torch.as_strided(seen, (2, 2), (6, 1), 1), ops.twice(seen)

    check(function, torch.randn(4, 6))


class Normed(nn.Module):
    """Running statistics that both sides update."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.BatchNorm1d(4), nn.BatchNorm1d(4)
        self.total: Tensor
        self.register_buffer("total", torch.zeros(4))
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        y = self.second(ops.twice(self.first(x)).tanh())
        ops.add_into(self.total, y.detach().sum(0))
        self.calls += 1
        return y * self.total + self.calls


def test_buffers_of_a_module_in_training_and_evaluation() -> None:
    eager = Normed()
    device = copy.deepcopy(eager)
    run = mixed(device)
    for step in range(4):
        if step == 3:
            eager.eval(), device.eval()
        x = torch.randn(6, 4)
        found, expected = run(x), eager(x)
        assert_same(found, expected)
        if step < 3:
            found.square().sum().backward()
            expected.square().sum().backward()
        states = [dict(module.state_dict()) for module in (device, eager)]
        # What is normalized sums to zero, up to rounding.
        torch.testing.assert_close(*(state.pop("total") for state in states), rtol=0, atol=1e-5)
        assert_same(*states)
    for mine, theirs in zip(device.parameters(), eager.parameters(), strict=True):
        # Those of what is normalized afterwards are rounding alone.
        torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-3, atol=1e-3)
    assert device.calls.item() == 4
    assert all(device_segments())


def test_a_parameter_that_an_optimizer_updates_between_calls() -> None:
    weight = nn.Parameter(torch.randn(4, 4))

    def function(x: Tensor) -> Tensor:
        return ops.twice(x @ weight) @ weight

    run, x = mixed(function), torch.randn(2, 4)
    with torch.no_grad():
        for _ in range(3):
            assert_same(run(x), function(x))
            weight.add_(0.5)
        weight.data = torch.randn(4, 4)
        assert_same(run(x), function(x))
    assert sum(device_segments()) >= 2
