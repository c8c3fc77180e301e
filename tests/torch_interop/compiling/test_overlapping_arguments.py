"""Arguments over one memory that are written into, where AOTAutograd does not take them."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._dynamo.exc import BackendCompilerFailed

from pjrt_bridge.errors import FallbackForbidden, HostFallbackWarning
from pjrt_bridge.torch_interop import compiled_graphs
from tests.torch_interop.helpers import assert_same, compiled

pytestmark = pytest.mark.usefixtures("fresh")


def added(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    y.add_(1)
    return x * 2


def rows(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The same memory twice, without a tensor that both are known to be views of."""
    x = torch.arange(3.0 * count).view(count, 3).t()
    return x.detach(), x[:-1].detach()


def of_two_types(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.arange(3 * count, dtype=torch.int32).view(count, 3)
    return x, x.view(torch.float32)


@pytest.mark.filterwarnings("ignore::pjrt_bridge.errors.HostFallbackWarning")
@pytest.mark.parametrize("arguments", [rows, of_two_types])
def test_results_are_those_of_eager_mode(arguments: Callable[[int], Any]) -> None:
    run = torch.compile(added, backend="pjrt")
    for count in (3, 4, 5, 3):
        ours, theirs = arguments(count), arguments(count)
        assert torch.equal(run(*ours), added(*theirs))
        assert all(map(torch.equal, ours, theirs))


@pytest.mark.filterwarnings("ignore::pjrt_bridge.errors.HostFallbackWarning")
def test_gradients_are_those_of_eager_mode() -> None:
    def scaled(x: torch.Tensor, y: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return added(x, y) * w

    weights = [torch.ones(4, requires_grad=True) for _ in range(2)]
    for function, weight in zip(
        (torch.compile(scaled, backend="pjrt"), scaled), weights, strict=True
    ):
        function(*rows(4), weight).sum().backward()
    assert torch.equal(weights[0].grad, weights[1].grad)


def test_it_is_told() -> None:
    with pytest.warns(HostFallbackWarning, match="arguments that overlap in memory"):
        torch.compile(added, backend="pjrt", dynamic=True)(*rows(3))
    (graph,) = compiled_graphs()
    assert [segment.placement for segment in graph.segments] == ["host"]


def test_it_is_refused_where_the_host_is_forbidden() -> None:
    run = torch.compile(added, backend="pjrt", dynamic=True, options={"fallback": "error"})
    with pytest.raises(BackendCompilerFailed, match="overlap in memory") as caught:
        run(*rows(3))
    assert isinstance(caught.value.inner_exception, FallbackForbidden)


def test_views_of_one_tensor_stay_on_the_device() -> None:
    ours, theirs = (torch.arange(9.0).view(3, 3) for _ in range(2))
    assert torch.equal(compiled(added)(ours[1:], ours[:-1]), added(theirs[1:], theirs[:-1]))
    assert torch.equal(ours, theirs)


def over(memory: torch.Tensor, offset: int, *size: int) -> torch.Tensor:
    """A tensor over the memory of another one, of which autograd does not know."""
    return torch.empty(0).set_(memory.untyped_storage(), offset, size)


def in_the_midst(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    memory = torch.arange(100.0)
    return over(memory, 3, count, 2), over(memory, 4, count, 2)


def whole(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    memory = torch.arange(2.0 * count)
    return over(memory, 0, count, 2), memory


def written_first(x: torch.Tensor, y: torch.Tensor) -> Any:
    x.add_(1)
    return y * 2, x.t(), y[1:]


def both_written(x: torch.Tensor, y: torch.Tensor) -> Any:
    x.add_(1)
    y.mul_(2)
    return y


@pytest.mark.filterwarnings("ignore::pjrt_bridge.errors.HostFallbackWarning")
@pytest.mark.parametrize("dynamic", [False, None, True])
@pytest.mark.parametrize("function", [written_first, both_written])
@pytest.mark.parametrize("arguments", [in_the_midst, whole])
def test_memory_that_autograd_knows_nothing_of(
    arguments: Callable[[int], Any], function: Callable[..., Any], dynamic: bool | None
) -> None:
    run = torch.compile(function, backend="pjrt", dynamic=dynamic)
    for count in (3, 4, 3):
        ours, theirs = arguments(count), arguments(count)
        assert_same(run(*ours), function(*theirs))
        assert_same(ours, theirs)
        assert [item._version for item in ours] == [item._version for item in theirs]


Arguments = tuple[torch.Tensor, torch.Tensor]


def parts(memory: torch.Tensor, first: int, second: int) -> Arguments:
    flat = memory.view(-1)
    return flat[first : first + 6], flat[second : second + 6]


PLACES = [
    lambda: parts(torch.arange(10.0), 2, 0),
    lambda: parts(torch.arange(10.0), 1, 0),
    lambda: parts(torch.arange(10.0), 3, 1),
    lambda: parts(torch.arange(10.0), 0, 3),
    lambda: parts(torch.arange(20.0), 0, 3),
    lambda: parts(torch.arange(12.0).view(3, 4).clone(), 0, 3),
    lambda: parts(torch.arange(12.0).view(3, 4).t().clone().t().view(4, 3), 0, 3),
]
"""Tensors of one shape that lie in one tensor."""


def apart() -> Arguments:
    return over(torch.arange(9.0), 0, 6), torch.arange(6.0)


@pytest.mark.filterwarnings("ignore::pjrt_bridge.errors.HostFallbackWarning")
@pytest.mark.parametrize("dynamic", [False, None, True])
@pytest.mark.parametrize("before", [0, 3])
def test_places_in_the_tensor_that_they_are_views_of_change(
    before: int, dynamic: bool | None
) -> None:
    for now in PLACES:
        torch.compiler.reset()
        run = torch.compile(added, backend="pjrt", dynamic=dynamic)
        for arguments in (PLACES[before], now, PLACES[before], apart):
            ours, theirs = arguments(), arguments()
            assert_same(run(*ours), added(*theirs))
            assert_same(ours, theirs)
