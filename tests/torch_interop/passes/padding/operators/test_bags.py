"""Bags of embeddings whose indices, or number, are padded."""

from typing import Any

import pytest
import torch
from torch.nn import functional as F  # noqa: N812

from tests.torch_interop.passes.padding.rows import (
    SIZE,
    assert_padding_changes_nothing,
    padded,
    refusals,
    symbolic,
    with_gradients,
)

N = SIZE
torch.manual_seed(0)
TABLE = torch.randn(7, 3)
WORDS = torch.tensor([2, 0, 6, 1, 6])
NINE = torch.randint(0, 7, (9,))

GIVEN: dict[str, tuple[Any, ...]] = {
    "one size for all bags": (torch.randint(0, 7, (N, 3)).t(), TABLE),
    "any number of bags": (torch.randint(0, 7, (N, 3)), TABLE),
    "any number of indices": (WORDS, TABLE, torch.tensor([0, 2, 2])),
    "any number of offsets": (NINE, TABLE, torch.tensor([0, 2, 2, 5, 9])),
}


@pytest.mark.parametrize("ignored", [None, 6])
@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("name", GIVEN)
def test_padding_is_in_no_bag(name: str, mode: str, ignored: int | None) -> None:
    def function(indices: torch.Tensor, table: torch.Tensor, *offsets: torch.Tensor) -> Any:
        return F.embedding_bag(indices, table, *offsets, mode=mode, padding_idx=ignored)

    assert_padding_changes_nothing(with_gradients(function), *GIVEN[name])


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("bags", [(WORDS, [0, 2, 2, 5]), (NINE, [0, 2, 2, 5, 9])], ids=len)
def test_the_end_of_the_last_bag_is_given(bags: Any, mode: str) -> None:
    def function(indices: torch.Tensor, table: torch.Tensor, offsets: torch.Tensor) -> Any:
        return F.embedding_bag(indices, table, offsets, mode=mode, include_last_offset=True)

    indices, offsets = bags
    assert_padding_changes_nothing(with_gradients(function), indices, TABLE, torch.tensor(offsets))


def test_weights_of_indices_have_gradients() -> None:
    def function(indices: torch.Tensor, table: torch.Tensor, weights: torch.Tensor) -> Any:
        offsets = torch.tensor([0, 2, 2])
        return F.embedding_bag(indices, table, offsets, mode="sum", per_sample_weights=weights)

    assert_padding_changes_nothing(with_gradients(function), WORDS, TABLE, torch.randn(N))


def test_a_table_is_not_padded() -> None:
    args = torch.tensor([[0, 1]]), torch.randn(N, 3)
    (found,) = refusals(symbolic(F.embedding_bag, *args), args)
    assert "it looks up rows of the dimension" in found


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
def test_the_first_bag_has_to_begin_with_the_first_index(dtype: torch.dtype) -> None:
    def function(indices: torch.Tensor, table: torch.Tensor, offsets: torch.Tensor) -> Any:
        return F.embedding_bag(indices, table, offsets)

    indices = NINE.to(dtype)
    graph = symbolic(function, indices, TABLE, torch.tensor([0, 2, 2, 5, 9], dtype=dtype))
    wrong = torch.tensor([1, 2, 2, 5, 9], dtype=dtype)
    with pytest.raises(IndexError, match="found indices from 1 to 1, expected 0 to 0"):
        padded(graph, [indices, TABLE, wrong], checks_positions=True)
