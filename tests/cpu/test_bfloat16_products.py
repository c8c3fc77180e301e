"""Products in bfloat16 whose left side is transposed on the way."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from tests.torch_interop.helpers import assert_same

pytestmark = pytest.mark.usefixtures("fresh")

Function = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]

FUNCTIONS: dict[str, Function] = {
    "masked": lambda x, y, mask: torch.where(mask, x.t(), 0) @ y,
    "in a batch": lambda x, y, mask: torch.bmm(torch.where(mask, x.t(), 0)[None], y[None]),
}


@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS)
def test_a_left_side_that_is_transposed_below_another_operation(function: Function) -> None:
    """XLA's CPU plugin merged the transpose into the product, and failed when it ran."""
    x, y = torch.randn(56, 16).bfloat16(), torch.randn(56, 8).bfloat16()
    mask = torch.arange(56) < 50
    compiled = torch.compile(function, backend="pjrt", options={"fallback": "error"})
    assert_same(compiled(x, y, mask), function(x, y, mask))


def test_padded_gradients_of_a_layer() -> None:
    layer = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)).bfloat16()
    compiled = torch.compile(layer, backend="pjrt", options={"fallback": "error"}, dynamic=True)
    for rows in (4, 6):
        x = torch.randn(rows, 8).bfloat16()
        weight = layer[0].weight
        found, expected = (
            torch.autograd.grad(model(x).sum(), weight)[0] for model in (compiled, layer)
        )
        torch.testing.assert_close(found, expected, rtol=2e-2, atol=2e-2)
