"""Graphs that write into arguments, compiled for such that lie apart, called where they overlap."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from pjrt_bridge.errors import FallbackForbidden, HostFallbackWarning
from pjrt_bridge.torch_interop import compiled_graphs


def added(x: Tensor, y: Tensor) -> Any:
    x.add_(y.sum())
    return y * 2


def both(x: Tensor, y: Tensor) -> Any:
    before = y.clone()
    x.mul_(2)
    y.sub_(x.sum())
    return before, x.sum()


def pairs() -> list[Callable[[Tensor], tuple[Tensor, Tensor]]]:
    return [
        lambda m: (m[:3], torch.ones(3, 4)),
        lambda m: (m[:3], m[3:6]),
        lambda m: (m[:3], m[2:5]),
        lambda m: (m[:3], m[1:4].flip(0)),
        lambda m: (m[:3], m.t().reshape(24)[:12].view(3, 4)),
        lambda m: (m[:3], m.view(-1)[6:18].view(4, 3).t()[:, :3].t()[:3].t()),
        lambda m: (m[:, :2], m[:, 2:]),
        lambda m: (m[1:4], m.detach()[:3]),
    ]


@pytest.mark.filterwarnings("ignore::pjrt_bridge.errors.HostFallbackWarning")
@pytest.mark.parametrize("dynamic", [None, True, False])
@pytest.mark.parametrize("function", [added, both])
def test_compiled_apart_and_called_where_they_overlap(
    function: Callable[..., Any], dynamic: bool | None
) -> None:
    compiled = torch.compile(function, backend="pjrt", dynamic=dynamic)
    for _ in range(2):
        for pair in pairs():
            ours, eager = torch.arange(24.0).reshape(6, 4), torch.arange(24.0).reshape(6, 4)
            torch.testing.assert_close(compiled(*pair(ours)), function(*pair(eager)))
            torch.testing.assert_close(ours, eager)


@pytest.mark.filterwarnings("ignore::pjrt_bridge.errors.HostFallbackWarning")
def test_gradients_where_they_overlap() -> None:
    def function(x: Tensor, y: Tensor, w: Tensor) -> Tensor:
        x.mul_(w)
        return (x * y).sum()

    compiled = torch.compile(function, backend="pjrt")
    for pair in pairs():
        if not all(item.is_contiguous() for item in pair(torch.ones(6, 4))):
            # Dynamo cannot trace such views of one tensor (torch 2.13).
            continue
        found = []
        for run in (compiled, function):
            m = torch.arange(24.0).reshape(6, 4)
            w = torch.tensor(3.0, requires_grad=True)
            x, y = pair(m * 1)
            loss = run(x, y, w)
            loss.backward()  # type: ignore[no-untyped-call]
            found.append((loss, w.grad, x, y))
        torch.testing.assert_close(*found)


def test_what_is_told() -> None:
    # What was told is not told again.
    torch.compiler.reset()

    def function(x: Tensor, y: Tensor) -> None:
        x.add_(y.sum())

    compiled = torch.compile(function, backend="pjrt")
    compiled(torch.ones(4), torch.ones(4))
    before = len(compiled_graphs())
    compiled(torch.ones(4), torch.ones(4))
    compiled((m := torch.ones(8))[:4], m[4:])
    assert len(compiled_graphs()) == before
    with pytest.warns(HostFallbackWarning, match="overlap in memory"):
        compiled((m := torch.ones(8))[:4], m[2:6])
    assert [item.segments[0].placement for item in compiled_graphs()][-1] == "host"


def test_an_error_where_the_host_is_forbidden() -> None:
    def function(x: Tensor, y: Tensor) -> None:
        x.add_(y.sum())

    compiled = torch.compile(function, backend="pjrt", options={"fallback": "error"})
    compiled(torch.ones(4), torch.ones(4))
    m = torch.ones(8)
    with pytest.raises(FallbackForbidden, match="overlap in memory"):
        compiled(m[:4], m[2:6])
    torch.testing.assert_close(m, torch.ones(8))
    compiled(m[:4], m[4:])
    torch.testing.assert_close(m, torch.tensor([5.0] * 4 + [1.0] * 4))


def returned(x: Tensor, y: Tensor) -> Any:
    return x.add_(y.sum()), y.mul_(2), x + 1


@pytest.mark.filterwarnings("ignore::pjrt_bridge.errors.HostFallbackWarning")
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.parametrize("is_trained", [False, True])
def test_results_are_the_arguments_that_were_written(is_trained: bool) -> None:
    sides = []
    for run in (torch.compile(returned, backend="pjrt"), returned):
        leaf = torch.arange(12.0, requires_grad=is_trained)
        memory = leaf * 1
        x, y = memory[:6], memory[4:10]
        first, second, third = run(x, y)
        assert first is x
        assert second is y
        if is_trained:
            (first.sum() + (second * third).sum()).backward()
        sides.append((first, second, third, memory, leaf.grad))
    torch.testing.assert_close(*sides)


@pytest.mark.filterwarnings("ignore::pjrt_bridge.errors.HostFallbackWarning")
def test_views_that_the_merged_tensor_does_not_have() -> None:
    """AOTAutograd would repeat `unbind` on a tensor with fewer elements there, which is a crash."""

    def function(written: Tensor, windows: Tensor, x: Tensor) -> Any:
        written.mul_(written)
        x.sub_(1)
        return windows.unbind(-2)

    sides = []
    for run in (torch.compile(function, backend="pjrt"), function):
        memory = torch.arange(36.0).view(3, 3, 4)
        x = memory[:-1]
        windows = x.unfold(0, 2, 2)
        parts = run(windows, windows, x)
        assert all(part.untyped_storage().data_ptr() == memory.data_ptr() for part in parts)
        sides.append((parts, memory))
    torch.testing.assert_close(*sides)
