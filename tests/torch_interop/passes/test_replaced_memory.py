"""Compiled functions that give their arguments other memory: `argument.data = x`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from pjrt_bridge.torch_interop import compiled_graphs

pytestmark = pytest.mark.usefixtures("fresh")

Function = Callable[[torch.Tensor, torch.Tensor], Any]


def another_argument(x: torch.Tensor, y: torch.Tensor) -> Any:
    x.data = y
    return x * 2


def a_view(x: torch.Tensor, y: torch.Tensor) -> Any:
    x.data = y.t()
    return x * 2, x[1:]


def a_part(x: torch.Tensor, y: torch.Tensor) -> Any:
    x.data = y[1:, ::2]
    return y.sum()


def a_new_tensor(x: torch.Tensor, y: torch.Tensor) -> Any:
    x.data = y * 3
    return x


def an_old_value(x: torch.Tensor, y: torch.Tensor) -> Any:
    before = x * 2
    x.data = x.data + y
    return before, x


def one_for_two(x: torch.Tensor, y: torch.Tensor) -> Any:
    made = x * 2
    x.data = made[1:]
    y.data = made
    return x + y[1:], made


FUNCTIONS = [another_argument, a_view, a_part, a_new_tensor, an_old_value, one_for_two]


def _seen(function: Any, device: str, *, requires_grad: bool) -> list[Any]:
    """All that two calls do, and which tensors share memory after each."""
    x = torch.arange(9.0).reshape(3, 3).to(device).requires_grad_(requires_grad)
    y = torch.arange(10.0, 19).reshape(3, 3).to(device)
    seen: list[Any] = []
    for _ in range(2):
        results = function(x, y)
        tensors = [x, y, *(results if isinstance(results, tuple) else (results,))]
        for tensor in tensors:
            with torch.no_grad():
                before = [item.cpu().clone() for item in tensors]
                tensor.add_(100)
                changed = [
                    not torch.equal(item.cpu(), old)
                    for item, old in zip(tensors, before, strict=True)
                ]
                tensor.sub_(100)
            place = (tuple(tensor.shape), tensor.stride(), tensor.storage_offset())
            seen.append((place, tensor.requires_grad, changed, tensor.detach().cpu().tolist()))
    return seen


CASES = [(function, False) for function in FUNCTIONS] + [(a_view, True), (a_new_tensor, True)]


@pytest.mark.parametrize("device", ["cpu", "pjrt"])
@pytest.mark.parametrize(("function", "requires_grad"), CASES)
def test_it_is_the_memory_that_eager_gives(
    function: Function, device: str, requires_grad: bool
) -> None:
    compiled = torch.compile(function, backend="pjrt")
    expected = _seen(function, "cpu", requires_grad=requires_grad)
    assert _seen(compiled, device, requires_grad=requires_grad) == expected


def test_the_graph_is_not_divided() -> None:
    x, y = torch.ones(3, 3), torch.ones(3, 3)
    torch.compile(a_new_tensor, backend="pjrt")(x, y)
    (graph,) = compiled_graphs()
    assert [segment.placement for segment in graph.segments] == ["device"]


def test_sizes_may_change() -> None:
    compiled = torch.compile(an_old_value, backend="pjrt", dynamic=True)
    for size in (3, 5, 1, 3):
        pairs = [(torch.ones(size, 2), torch.full((size, 2), 4.0)) for _ in range(2)]
        mine, theirs = compiled(*pairs[0]), an_old_value(*pairs[1])
        for one, other in zip((*mine, *pairs[0]), (*theirs, *pairs[1]), strict=True):
            torch.testing.assert_close(one, other)
        assert mine[1].data_ptr() == pairs[0][0].data_ptr()
