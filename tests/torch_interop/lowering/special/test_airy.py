import math

import pytest
import torch

from tests.torch_interop.lowering.harness import check

EDGES = [0.0, -0.0, 2.09, -2.09, 8.33, 103.8, 104.0, 1e30, math.inf, -math.inf, math.nan]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_values_on_both_sides_of_every_change_of_method(dtype):
    x = torch.cat([torch.linspace(-30, 30, 241), torch.tensor(EDGES)]).to(dtype)
    check("aten.special_airy_ai.default", x)


def test_integers_and_empty_tensors():
    check("aten.special_airy_ai.default", torch.arange(-4, 5))
    check("aten.special_airy_ai.default", torch.empty(2, 0))
