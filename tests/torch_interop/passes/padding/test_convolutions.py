"""Convolutions whose channels are padded, forward and backward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F  # noqa: N812

from tests.torch_interop.passes.padding.rows import (
    SIZE,
    assert_padding_changes_nothing,
    refusals,
    symbolic,
    with_gradients,
)

N = SIZE
torch.manual_seed(0)


def randn(*shape: int) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float64)


CHANNELS: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...]]] = {
    "taken": (lambda x, w: F.conv1d(x, w, padding=1), (randn(2, N, 7), randn(3, N, 3))),
    "given": (F.conv1d, (randn(2, 4, 7), randn(N, 4, 3))),
    "given with a bias": (F.conv1d, (randn(2, 4, 7), randn(N, 4, 3), randn(N))),
    "both, in a batch": (F.conv2d, (randn(N, N, 4, 4), randn(N, N, 2, 2), randn(N))),
    "and the length": (lambda x, w: F.conv1d(x, w, stride=2), (randn(2, N, N), randn(3, N, 2))),
    "taken, transposed": (
        lambda x, w, b: F.conv_transpose1d(x, w, b, stride=2),
        (randn(2, N, 7), randn(N, 3, 3), randn(3)),
    ),
    "given, transposed": (F.conv_transpose1d, (randn(2, 4, 7), randn(4, N, 3), randn(N))),
    "each of its own": (
        lambda x, w, b: F.conv1d(x, w, b, groups=x.shape[1]),
        (randn(2, N, 7), randn(N, 1, 3), randn(N)),
    ),
    "each of its own, in images": (
        lambda x: F.conv2d(x, x.new_ones(x.shape[1], 1, 3, 3), groups=x.shape[1], padding=1),
        (randn(2, N, 4, N),),
    ),
}


@pytest.mark.parametrize("name", CHANNELS)
def test_channels(name: str) -> None:
    function, args = CHANNELS[name]
    assert_padding_changes_nothing(with_gradients(function), *args)


def test_groups_of_channels_with_a_padded_batch() -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return F.conv1d(x, w, groups=2)

    assert_padding_changes_nothing(with_gradients(function), randn(N, 4, 7), randn(6, 2, 3))


def of_windows(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return F.conv1d(x, x.new_ones(2, 4, y.shape[0]), padding=y.shape[0])


def in_groups(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return F.conv1d(x, x.new_ones(2 * y.shape[0], 2, 3), groups=2)


def gradients(grad: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Those of a convolution, for gradients of a result that need not be its own."""
    found = torch.ops.aten.convolution_backward(
        grad, x, x.new_ones(3, 4, 3), [3], [1], [0], [1], False, [0], 1, [True, True, True]
    )
    return tuple(found)


def of_another_length(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    # As long as the result in a call without padding only.
    length = 2 * y.shape[0] - 7
    return gradients(x.new_ones(2, 3, length), x.new_ones(2, 4, y.shape[0]))


def of_another_batch(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return gradients(x.new_ones(5, 3, 7), x.new_ones(y.shape[0], 4, 9))


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (of_windows, "it sums over windows of the size"),
        (in_groups, "it divides the channels into groups"),
        (of_another_length, "it combines the dimension with one of another size"),
        (of_another_batch, "it combines the dimension with one of another size"),
    ],
)
def test_what_is_not_padded(function: Callable[..., Any], why: str) -> None:
    args = (randn(2, 4, 9), randn(N))
    (found,) = refusals(symbolic(function, *args), args)
    assert why in found
