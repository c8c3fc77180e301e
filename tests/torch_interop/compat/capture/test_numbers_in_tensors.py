"""Tensors of one number that is made of sizes: used as a size, it needs no data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from pjrt_bridge.torch_interop import compiled_graphs
from tests.torch_interop.compat.capture.helpers import check_few_graphs
from tests.torch_interop.helpers import assert_same

SHAPES = [(2, 4 * length, 3) for length in (2, 3, 5, 7, 8, 11, 12, 13, 21)]


def _viewed(x: torch.Tensor) -> torch.Tensor:
    count = torch.div(x.size(1), 4, rounding_mode="trunc")
    return x.view(x.size(0), count, 4, x.size(2)).sum(2) * 2


def _calculated(x: torch.Tensor) -> torch.Tensor:
    count = torch.div(x.size(1), 4, rounding_mode="floor") - 1
    made = x.new_zeros((x.size(0), count + 1, x.size(2)))
    return made + x.reshape((x.size(0), (1 + count) * 4, -1))[:, : x.size(1) // 4]


def _strided(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    count = torch.floor_divide(torch.tensor(y.size(1)), 4)
    return y.as_strided(size=(y.size(0), 1 * count, 3), stride=(y.stride(0), 12, 1)) + 1


def _as_number(x: torch.Tensor) -> torch.Tensor:
    return x * torch.tensor(x.size(1)).item() + int(torch.div(-x.size(1), 3, rounding_mode="trunc"))


def _as_tensor(x: torch.Tensor) -> torch.Tensor:
    count = torch.div(x.size(1), 4, rounding_mode="trunc")
    return x * count + count.float().sqrt() + (count / 3)


def _clamped(x: torch.Tensor) -> torch.Tensor:
    span = torch.tensor(min(x.size(1), 16))
    y = torch.clamp(x * 20, 0, span * 2 - 1) + torch.clip(x * 20, min=-3, max=span)
    return y + (x * 20).clamp(-span, 1) + (x * 20).clamp(max=span)


def _clamped_whole_numbers(x: torch.Tensor) -> torch.Tensor:
    count = torch.tensor(x.size(1))
    at = torch.arange(x.size(1), dtype=torch.int32) * 2
    return x * torch.clamp(at, 1, count)[:, None] + torch.clamp(at, -count, count)[:, None]


def _created(x: torch.Tensor) -> torch.Tensor:
    count = torch.tensor(x.size(1))
    full = torch.full((2, count, 3), 0.5) + torch.zeros(2, count, 3) + torch.ones(2, count, 1)
    return x * full + torch.arange(1, count + 1)[:, None]


def _moved(x: torch.Tensor) -> torch.Tensor:
    half = torch.tensor(x.size(1) // 2)
    first, second = torch.split(x, [half, x.size(1) - half], 1)
    rows = torch.tril(x.mT, half - 3).mT + x.mT.triu(half - 3).mT
    return torch.roll(x, half, 1) + rows + torch.cat([second, first], 1)


FUNCTIONS = {
    item.__name__: item
    for item in (
        *(_viewed, _calculated, _strided, _as_number, _as_tensor),
        *(_clamped, _clamped_whole_numbers, _created, _moved),
    )
}


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize("name", FUNCTIONS)
def test_few_graphs_without_a_break(name: str) -> None:
    check_few_graphs(SHAPES, FUNCTIONS[name])
    kinds = [graph.kind for graph in compiled_graphs()]
    assert len(kinds) <= 8
    assert all(s.placement == "device" for graph in compiled_graphs() for s in graph.segments)
    torch.compile(FUNCTIONS[name], backend="pjrt", fullgraph=True)(torch.randn(2, 8, 3))


def _changed(x: torch.Tensor) -> Any:
    count = torch.tensor(x.size(1))
    other = count
    count += 1
    return x.new_ones((count,)), other, count


def _changed_through_a_view(x: torch.Tensor) -> Any:
    count = torch.tensor(x.size(1))
    count.view(1).add_(2)
    return x.new_ones((count,)), count


def _changed_in_place(x: torch.Tensor) -> Any:
    count = torch.tensor(x.size(1))
    count.sub_(1)
    return x.new_ones((count - 1,)), count


@pytest.mark.filterwarnings("ignore::pjrt_bridge.errors.HostFallbackWarning")
@pytest.mark.parametrize("function", [_changed, _changed_through_a_view, _changed_in_place])
def test_a_number_that_is_written_over(function: Callable[[torch.Tensor], Any]) -> None:
    run = torch.compile(function, backend="pjrt")
    for shape in SHAPES[:4]:
        x = torch.randn(shape)
        assert_same(run(x), function(x))


def test_a_number_that_is_returned_is_a_tensor() -> None:
    def function(x: torch.Tensor) -> Any:
        count = torch.div(x.size(1), 4, rounding_mode="trunc") - 1
        return x + 1, count, torch.is_tensor(count)

    run = torch.compile(function, backend="pjrt", fullgraph=True)
    for shape in SHAPES[:4]:
        x = torch.randn(shape)
        assert_same(run(x)[:2], function(x)[:2])
        assert run(x)[2] is True
