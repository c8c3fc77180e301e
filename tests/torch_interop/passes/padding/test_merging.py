"""Dimensions that were merged of others than an operator takes."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.torch_interop.passes.padding.rows import SIZE, assert_padding_changes_nothing

N = SIZE
torch.manual_seed(0)
X = torch.randn(N, 4)
CUBE = torch.randn(N, 2, 6)
IMAGE = torch.randn(2, 3, N, N)

MERGED: dict[str, tuple[Callable[[torch.Tensor], Any], torch.Tensor]] = {
    "a sum with what is merged otherwise": (lambda x: x.reshape(-1) + x.t().reshape(-1), X),
    "order": (lambda x: x.t().reshape(-1).sort(), X),
    "a triangle": (lambda x: x.permute(1, 0, 2).reshape(-1, 6).tril(), CUBE),
    "one behind another": (
        lambda x: torch.cat([x[:1, 0], x.permute(1, 0, 2).reshape(-1, 6), x[:, 1]]),
        CUBE,
    ),
    "positions among all": (lambda x: (x.t().argmax(), x.t().argmin(keepdim=True)), X),
    "moved around": (lambda x: x.t().reshape(-1).roll(3, 0).view(4, -1).softmax(1), X),
    "to another place": (lambda x: (x.reshape(4, -1), x.reshape(2, -1) * 2), X),
    "and back": (
        lambda x: x.permute(1, 0, 2).reshape(-1, 6)[3:].flip(0).reshape(-1).view(-1, 3),
        CUBE,
    ),
    "pairs": (
        lambda x: (x[:, None] + x[None]).reshape(-1, 4).cumsum(0).view(x.shape[0], -1, 4).sum(1),
        X,
    ),
    "pairs as other pairs": (
        lambda x: (x @ x.t()).reshape(-1)[1:].view(x.shape[0] - 1, x.shape[0] + 1)[:, :-1] + 0,
        X,
    ),
    "a token before patches": (
        lambda x: torch.cat([x[..., 0, :1], x.flatten(2)], 2).transpose(1, 2).softmax(1),
        IMAGE,
    ),
    "patches as an image": (
        lambda x: (x.flatten(2).cumsum(2)).view(2, 3, x.shape[2], x.shape[3]).sum(3),
        IMAGE,
    ),
}


@pytest.mark.parametrize("name", MERGED)
def test_elements_are_moved_to_where_they_are_in_the_call(name: str) -> None:
    assert_padding_changes_nothing(*MERGED[name])
