"""Adaptive pooling to numbers of places that change, forward and backward."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional as F  # noqa: N812

from tests.torch_interop.passes.padding.rows import (
    SIZE,
    assert_padding_changes_nothing,
    padded,
    symbolic,
    with_gradients,
)

N = SIZE
torch.manual_seed(0)


@pytest.mark.parametrize("shape", [(2, 3, N, 7), (2, N, N), (2, 3, 7, 6), (N, 3, 7, 6)], ids=str)
def test_means_of_as_many_windows_as_a_size(shape: tuple[int, ...]) -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> Any:
        count = y.shape[0]
        wide = F.adaptive_avg_pool2d(x, (count - 2, 3)), F.adaptive_avg_pool2d(x, (2, count))
        return *wide, F.adaptive_avg_pool2d(x, (2 * count, count - 1)), y * 2

    assert_padding_changes_nothing(with_gradients(function), torch.randn(shape), torch.randn(N))


@pytest.mark.parametrize("shape", [(2, N, 4, N), (2, 3, 4, N, 6), (N, 3, 4, 3, 6)], ids=str)
def test_the_largest_of_volumes(shape: tuple[int, ...]) -> None:
    def function(x: torch.Tensor) -> Any:
        found = F.adaptive_max_pool3d(x, (3, 2, 4), return_indices=True)
        return (*found, F.adaptive_max_pool3d(x.round(), 2, return_indices=True)[1])

    assert_padding_changes_nothing(with_gradients(function), torch.randn(shape))


@pytest.mark.parametrize("shape", [(2, N, 7), (2, 7, N), (2, N, N)], ids=str)
def test_the_first_of_a_window_that_is_infinite_and_the_last_nan_are_the_largest(
    shape: tuple[int, ...],
) -> None:
    def function(x: torch.Tensor) -> Any:
        return F.adaptive_max_pool2d(x, (3, 2), return_indices=True)

    x = torch.randn(shape)
    x[0] = x[1, :2] = -torch.inf
    for given in (x, torch.where(x > 0, torch.nan, x)):
        found = padded(symbolic(function, given), [given])
        torch.testing.assert_close(found, list(function(given)), equal_nan=True)
