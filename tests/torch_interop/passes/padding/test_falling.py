"""Sizes that fall as a symbol grows: padded where it is equal to another symbol in each call."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from pjrt_bridge.torch_interop import compiled_graphs
from tests.torch_interop.helpers import assert_same

FUNCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "columns": lambda x: x[:, x.shape[0] // 2 :] * 2,
    "diagonal": lambda x: torch.diag(x, x.shape[0] // 2) * 2,
    "rows": lambda x: x[x.shape[1] // 3 :].sum(0),
}


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize("name", FUNCTIONS)
def test_sizes_of_squares_share_programs(name: str) -> None:
    function = FUNCTIONS[name]
    run = torch.compile(function, backend="pjrt")
    for length in (5, 8, 13, 29, 7, 30, 60, 25, 58):
        x = torch.randn(length, length)
        assert_same(run(x), function(x), rtol=1e-5, atol=1e-5)
    assert len(compiled_graphs()) <= 4


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize("name", FUNCTIONS)
def test_sizes_that_differ_later(name: str) -> None:
    function = FUNCTIONS[name]
    run = torch.compile(function, backend="pjrt")
    for rows, columns in ((5, 5), (8, 8), (13, 13), (40, 30), (12, 60), (60, 31), (20, 20)):
        x = torch.randn(rows, columns)
        assert_same(run(x), function(x), rtol=1e-5, atol=1e-5)


@pytest.mark.usefixtures("fresh")
def test_sizes_of_several_arguments_may_be_equal_by_chance() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x[y.shape[0] // 2 :].sum(0) + y.sum(0)

    run = torch.compile(function, backend="pjrt", dynamic=True)
    for rows in (9, 10, 11, 13, 14, 15, 16):
        x, y = torch.randn(rows, 4), torch.randn(9, 4)
        assert_same(run(x, y), function(x, y), rtol=1e-5, atol=1e-5)
    # Of all sizes there are seven.
    assert len(compiled_graphs()) <= 2
