"""Arguments over one memory that are written into, where AOTAutograd does not take them."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._dynamo.exc import BackendCompilerFailed

from pjrt_bridge.errors import FallbackForbidden, HostFallbackWarning
from pjrt_bridge.torch_interop import compiled_graphs
from tests.torch_interop.helpers import compiled

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
    with pytest.warns(HostFallbackWarning, match="arguments that lie in the same memory"):
        torch.compile(added, backend="pjrt", dynamic=True)(*rows(3))
    (graph,) = compiled_graphs()
    assert [segment.placement for segment in graph.segments] == ["host"]


def test_it_is_refused_where_the_host_is_forbidden() -> None:
    run = torch.compile(added, backend="pjrt", dynamic=True, options={"fallback": "error"})
    with pytest.raises(BackendCompilerFailed, match="in the same memory") as caught:
        run(*rows(3))
    assert isinstance(caught.value.inner_exception, FallbackForbidden)


def test_known_sizes_stay_on_the_device() -> None:
    ours, theirs = rows(3), rows(3)
    assert torch.equal(compiled(added)(*ours), added(*theirs))
    assert all(map(torch.equal, ours, theirs))
