"""Writes through views with repeated memory give what they give in eager mode."""

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo.exc import BackendCompilerFailed

from pjrt_bridge.errors import FallbackForbidden, HostFallbackWarning
from pjrt_bridge.torch_interop import compiled_graphs
from tests.torch_interop.helpers import assert_compiled, compiled

pytestmark = pytest.mark.usefixtures("fresh")


def filled(x: torch.Tensor) -> torch.Tensor:
    x.expand(2, -1, -1).fill_(3.0)
    return x * 1


def rounded(x: torch.Tensor) -> torch.Tensor:
    """The sum of differences, that functionalization makes, loses the small number."""
    x.mul_(1e10)
    x[0].expand(2, 3)[0].fill_(1.25)
    return x + 1


def masked(x: torch.Tensor) -> torch.Tensor:
    part = x[0].expand(2, 3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        part.masked_fill_(torch.tensor([[True, False, False], [False, True, False]]), 7.0)
    return x + 1


def windows(x: torch.Tensor) -> torch.Tensor:
    x.view(-1).unfold(0, 3, 1).zero_()
    return x + 1


def assigned(x: torch.Tensor) -> torch.Tensor:
    x.expand(2, 2, 3)[1, 0] = 4.0
    return x + 1


def trained(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    y[:1].expand(3, -1)[1, :2].zero_()
    return y.square()


@pytest.mark.parametrize("function", [filled, rounded, masked, windows, assigned, trained])
@pytest.mark.filterwarnings("ignore::pjrt_bridge.errors.HostFallbackWarning")
def test_values_are_those_of_eager_mode(function: Callable[..., Any]) -> None:
    found, expected = (torch.arange(6.0).view(2, 3) + 0.37 for _ in range(2))
    assert torch.equal(torch.compile(function, backend="pjrt")(found), function(expected))
    assert torch.equal(found, expected)


@pytest.mark.filterwarnings("ignore::pjrt_bridge.errors.HostFallbackWarning")
def test_arguments_that_repeat_elements() -> None:
    def f(x: torch.Tensor, base: torch.Tensor) -> torch.Tensor:
        x[0].mul_(1.5)
        base.add_(1)
        return x + base

    found, expected = torch.arange(3.0), torch.arange(3.0)
    result = torch.compile(f, backend="pjrt")(found.expand(2, 3), found)
    assert torch.equal(result, f(expected.expand(2, 3), expected))
    assert torch.equal(found, expected)


@pytest.mark.filterwarnings("ignore::pjrt_bridge.errors.HostFallbackWarning")
def test_gradients_are_those_of_eager_mode() -> None:
    found, expected = (torch.arange(6.0).view(2, 3).requires_grad_() for _ in range(2))
    torch.compile(trained, backend="pjrt")(found).sum().backward()
    trained(expected).sum().backward()
    assert torch.equal(found.grad, expected.grad)
    assert [graph.kind for graph in compiled_graphs()] == ["forward"]


def test_it_is_told_with_its_line() -> None:
    with pytest.warns(HostFallbackWarning, match=r"fill_: it writes through a view .*fill_\(3.0"):
        torch.compile(filled, backend="pjrt")(torch.ones(2, 3))
    (graph,) = compiled_graphs()
    assert [segment.placement for segment in graph.segments] == ["host"]


def test_it_is_refused_where_the_host_is_forbidden() -> None:
    with pytest.raises(BackendCompilerFailed, match="writes through a view") as caught:
        compiled(filled)(torch.ones(2, 3))
    assert isinstance(caught.value.inner_exception, FallbackForbidden)


def other_writes(x: torch.Tensor) -> torch.Tensor:
    """Nothing is written where memory repeats."""
    wide = x.expand(2, 2, 3)
    wide.requires_grad_(False)
    x.view(-1).unfold(0, 2, 2).mul_(2)
    y = nn.functional.dropout(wide, 0.0, True) + 1
    y.t_() if y.dim() == 2 else y[0].add_(x.expand(2, 3))
    return nn.functional.relu(y, True)


def test_other_writes_stay_on_the_device() -> None:
    found, expected = torch.arange(6.0).view(2, 3), torch.arange(6.0).view(2, 3)
    assert torch.equal(compiled(other_writes)(found), other_writes(expected))
    assert torch.equal(found, expected)
    assert_compiled("inference")


def added(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    torch._foreach_add_([x, y], 2)
    return x + 1


def twice(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    torch._foreach_mul_([x, y, x], 2)
    return x + 1


def copied(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    torch._foreach_copy_([y, x.view(-1)[:2]], [y * 2, y])
    return x + 1


@pytest.mark.parametrize("overlapping", [False, True])
@pytest.mark.parametrize("function", [added, twice, copied])
@pytest.mark.filterwarnings("ignore::pjrt_bridge.errors.HostFallbackWarning")
def test_lists_are_written_in_turn(function: Callable[..., Any], overlapping: bool) -> None:
    on_device = torch.compile(function, backend="pjrt")
    for count in (6, 8):
        sides = []
        for run in (on_device, function):
            memory = torch.arange(count + 4.0)
            x = memory[:count].view(2, -1)
            y = memory[count - 2 : count] if overlapping else memory[count : count + 2]
            sides.append((run(x, y), memory))
        torch.testing.assert_close(*sides)


def test_lists_of_parts_of_one_tensor_stay_on_the_device() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        torch._foreach_add_([x[0], x[1]], [x[0], x[1]])
        torch._foreach_mul_(list(x.view(-1).split(2)), 3)
        return x

    sides = [run(torch.arange(6.0).view(2, 3)) for run in (compiled(function), function)]
    torch.testing.assert_close(*sides)
    assert_compiled("inference")


def apart(x: torch.Tensor) -> torch.Tensor:
    x.unfold(0, 1, 2).sub_(1)
    return x * 1


def all_but_the_last(x: torch.Tensor) -> torch.Tensor:
    x.unfold(0, 2, 2).mul_(2)
    return x * 1


def of_an_intermediate(x: torch.Tensor) -> torch.Tensor:
    y = (x * 2).view(-1, 1)
    y.unfold(0, 2, 3)[0].zero_()
    return y


def turned(x: torch.Tensor) -> torch.Tensor:
    x.unfold(0, 2, 2).transpose(0, 1)[0].copy_(x[-1].expand(x.shape[0] // 2))
    return x


@pytest.mark.parametrize("dynamic", [False, None, True])
@pytest.mark.parametrize("function", [apart, all_but_the_last, of_an_intermediate, turned])
@pytest.mark.filterwarnings("ignore::pjrt_bridge.errors.HostFallbackWarning")
def test_what_is_in_no_window_stays(function: Callable[..., Any], dynamic: bool | None) -> None:
    on_device = torch.compile(function, backend="pjrt", dynamic=dynamic)
    for count in (7, 9, 8):
        sides = []
        for run in (on_device, function):
            x = torch.arange(1.0, count + 1)
            sides.append((run(x), x))
        torch.testing.assert_close(*sides)
