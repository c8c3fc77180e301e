"""Assertions on positions that the graph computes divide no graph that writes into arguments."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional

from tests.torch_interop.helpers import assert_same, compiled

pytestmark = pytest.mark.usefixtures("fresh")

POSITIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "argmin": lambda x: x.argmin(1),
    "argmax of all": lambda x: x.argmax(),
    "topk": lambda x: x.topk(2, 1).indices,
    "sort": lambda x: x.sort().indices,
    "remainder": lambda x: (x * 100).long() % 40,
    "max": lambda x: x.max(1).indices[:, None],
}


def counting(positions: torch.Tensor, classes: int, total: torch.Tensor) -> torch.Tensor:
    chosen = functional.one_hot(positions, classes)
    total += chosen.sum()
    return chosen


@pytest.mark.parametrize("name", POSITIONS)
def test_positions_of_the_graph_are_within_its_sizes(name: str) -> None:
    on_device = compiled(lambda x, t: counting(POSITIONS[name](x), 40, t), fallback="error")
    x = torch.randn(5, 8)
    found, expected = torch.zeros(()), torch.zeros(())
    assert_same(on_device(x, found), counting(POSITIONS[name](x), 40, expected))
    assert_same(found, expected)


def test_positions_beyond_the_classes_raise_before_an_argument_is_written() -> None:
    on_device = compiled(lambda x, t: counting(x.argmin(1), 4, t), fallback="host")
    total = torch.zeros(())
    with (
        pytest.warns(match="_assert_async"),
        pytest.raises(RuntimeError, match="smaller than num_classes"),
    ):
        on_device(torch.arange(16.0).flip(0).reshape(2, 8), total)
    assert total == 0
