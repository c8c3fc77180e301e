"""The cells that accelerators get as one operator: as the layers compute on the host."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import nn

LAYERS: dict[str, Callable[[], nn.Module]] = {
    "LSTM": lambda: nn.LSTM(4, 5, num_layers=2, bidirectional=True),
    "LSTM without biases": lambda: nn.LSTM(4, 5, bias=False),
    "GRU": lambda: nn.GRU(4, 5, 2),
    "GRU without biases": lambda: nn.GRU(4, 5, bias=False),
    "RNN": lambda: nn.RNN(4, 5),
    "LSTMCell": lambda: nn.LSTMCell(4, 5),
    "GRUCell": lambda: nn.GRUCell(4, 5),
}


pytestmark = pytest.mark.usefixtures("pjrt_device")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", LAYERS)
def test_results_and_gradients(name: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    layer = LAYERS[name]().to(dtype)
    there = copy.deepcopy(layer).to("pjrt")
    x = torch.randn(*((2, 4) if name.endswith("Cell") else (3, 2, 4)), dtype=dtype)
    bound = {"rtol": 5e-2, "atol": 5e-2} if dtype is torch.bfloat16 else {}
    found = []
    for one in (layer, there):
        given = x.to(next(one.parameters()).device)
        results = torch.utils._pytree.tree_leaves(one(given))
        sum(result.square().sum() for result in results).backward()
        found.append([*results, *(weight.grad for weight in one.parameters())])
    at_home, on_device = ([item.detach().cpu() for item in items] for items in found)
    torch.testing.assert_close(on_device, at_home, **bound)
