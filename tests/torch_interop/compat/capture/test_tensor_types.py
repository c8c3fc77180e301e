"""Tensors that their types make of sizes need no graph for each size, and are eager's."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from tests.torch_interop.compat.capture.helpers import LENGTHS, check_few_graphs


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x / torch.LongTensor([x.shape[0]]),
        lambda x: x * torch.Tensor([len(x), 2.5]).sum(),
        lambda x: x * torch.IntTensor([[1, len(x)], [x.shape[0] // 2, 0]]).max(),
        lambda x: x * torch.FloatTensor((1, x.shape[0] / 3)).prod(),
        lambda x: x * torch.DoubleTensor([len(x) - 2, len(x) * 0.5])[1].item(),
    ],
)
def test_few_graphs_serve_all_sizes(function: Callable[[torch.Tensor], torch.Tensor]) -> None:
    check_few_graphs(LENGTHS, function)


@pytest.mark.parametrize(
    "kind",
    [torch.Tensor, torch.LongTensor, torch.HalfTensor, torch.ByteTensor, torch.BoolTensor],
)
def test_element_types_and_shapes(kind: Callable[..., torch.Tensor]) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return kind([[len(x) - 1, 3], [len(x) % 3, 0]])

    run = torch.compile(function, backend="pjrt", dynamic=True)
    for length in (4, 9):
        found, expected = run(torch.ones(length)), function(torch.ones(length))
        assert found.dtype == expected.dtype
        assert torch.equal(found, expected)


def test_a_shape_is_no_list_of_numbers() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.Tensor(x.shape).zero_() + x

    run = torch.compile(function, backend="pjrt", dynamic=True)
    for length in (4, 9):
        assert torch.equal(run(torch.ones(length)), torch.ones(length))
