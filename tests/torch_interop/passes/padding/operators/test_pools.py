"""Pooling along padded dimensions, forward and backward."""

from typing import Any

import pytest
import torch
from torch.nn import functional as F  # noqa: N812

from tests.torch_interop.passes.padding.rows import (
    SIZE,
    assert_padding_changes_nothing,
    with_gradients,
)

N = SIZE
torch.manual_seed(0)
IMAGES = [(2, 3, N, 7), (3, N, N), (2, 3, 7, N), (N, 3, 7, 6)]
VOLUMES = [(2, 3, N, 4, N), (2, 3, 4, N, 6), (2, 3, N, 4, 6)]


@pytest.mark.parametrize("ceil", [False, True])
@pytest.mark.parametrize("counted", [False, True])
@pytest.mark.parametrize("shape", IMAGES, ids=str)
def test_means_of_images(shape: tuple[int, ...], counted: bool, ceil: bool) -> None:
    def function(x: torch.Tensor) -> Any:
        wide = F.avg_pool2d(x, (3, 2), 2, (1, 0), ceil, counted)
        return wide, F.avg_pool2d(x, 3, 2, 1, ceil, counted), F.avg_pool2d(x, 2, 1)

    assert_padding_changes_nothing(with_gradients(function), torch.randn(shape))


@pytest.mark.parametrize("ceil", [False, True])
@pytest.mark.parametrize("shape", IMAGES, ids=str)
def test_the_largest_of_images(shape: tuple[int, ...], ceil: bool) -> None:
    def function(x: torch.Tensor) -> Any:
        wide = F.max_pool2d(x, (3, 2), 2, (1, 0), 1, ceil, return_indices=True)
        return (*wide, F.max_pool2d(x, 2, 2, 1, 2, ceil))

    assert_padding_changes_nothing(with_gradients(function), torch.randn(shape))


@pytest.mark.parametrize("ceil", [False, True])
@pytest.mark.parametrize("shape", VOLUMES, ids=str)
def test_volumes(shape: tuple[int, ...], ceil: bool) -> None:
    def function(x: torch.Tensor) -> Any:
        found = F.max_pool3d(x, 2, 2, 0, 1, ceil, return_indices=True)
        return (*found, F.avg_pool3d(x, (2, 3, 2), 2, 1, ceil, count_include_pad=False))

    assert_padding_changes_nothing(with_gradients(function), torch.randn(shape))


def test_means_with_a_divisor() -> None:
    def function(x: torch.Tensor) -> Any:
        return F.avg_pool2d(x, 3, 2, 1, True, False, 5), F.avg_pool1d(x, 3, 1, 1, False, False)

    assert_padding_changes_nothing(with_gradients(function), torch.randn(2, N, N))


def test_means_in_half_precision() -> None:
    def function(x: torch.Tensor) -> Any:
        return F.avg_pool2d(x.bfloat16(), 3, 2, 1, True, False)

    assert_padding_changes_nothing(function, torch.randn(2, 3, N, N))


def test_norms_of_neighbouring_channels() -> None:
    def function(x: torch.Tensor) -> Any:
        return F.local_response_norm(x, 3)

    assert_padding_changes_nothing(with_gradients(function), torch.randn(2, 4, N, N))
