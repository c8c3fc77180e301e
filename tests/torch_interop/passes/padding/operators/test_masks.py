"""What masks select of padded tensors, forward and backward."""

from typing import Any

import pytest
import torch

from pjrt_bridge.torch_interop import compiled_graphs
from tests.torch_interop.helpers import assert_same
from tests.torch_interop.passes.padding.rows import (
    SIZE,
    assert_padding_changes_nothing,
    with_gradients,
)

N = SIZE
torch.manual_seed(0)
MASK = torch.tensor([[True, False, True, True, False], [False, True, True, False, True]])


def test_elements_in_the_order_of_a_tensor() -> None:
    def function(x: torch.Tensor, mask: torch.Tensor, source: torch.Tensor) -> Any:
        rows = x.masked_scatter(mask[..., None], source)
        return (
            rows,
            x.masked_scatter(mask[0, :, None], source.t()),
            rows.masked_scatter(mask[1:], x),
        )

    def last(x: torch.Tensor, mask: torch.Tensor, source: torch.Tensor) -> Any:
        return x.transpose(1, 2).masked_scatter(mask[:, None], source)

    for source in ((7, 3), (N, 9), (3, 2, N), (2, N, 3)):
        args = torch.randn(2, N, 3), MASK, torch.randn(source)
        assert_padding_changes_nothing(with_gradients(last), *args)
    args = torch.randn(2, N, N), MASK, torch.randn(9, 9)
    assert_padding_changes_nothing(with_gradients(function), *args)


def test_positions_of_so_many_elements() -> None:
    def function(mask: torch.Tensor) -> Any:
        return (
            torch.nonzero_static(mask, size=4),
            torch.nonzero_static(mask[0], size=mask.shape[1], fill_value=7),
        )

    assert_padding_changes_nothing(function, MASK)


@pytest.mark.usefixtures("fresh")
def test_images_among_words() -> None:
    def function(words: torch.Tensor, images: torch.Tensor) -> torch.Tensor:
        mask = torch.arange(words.shape[1]) % 3 == 1
        return words.masked_scatter(mask[:, None].expand(-1, words.shape[2]), images).tanh()

    run = torch.compile(function, backend="pjrt")
    for length in (6, 9, 40, 37, 31, 12, 25):
        gradients = []
        for one in (run, function):
            torch.manual_seed(length)
            given = [torch.randn(2, length, 4), torch.randn(2 * ((length + 1) // 3), 4)]
            given = [item.requires_grad_() for item in given]
            made = one(*given)
            made.square().sum().backward()
            gradients.append([made.detach(), *(item.grad for item in given)])
        assert_same(*gradients, rtol=1e-5, atol=1e-5)
    assert len(compiled_graphs()) <= 12
    assert all(graph.on_device == len(graph.segments) for graph in compiled_graphs())
