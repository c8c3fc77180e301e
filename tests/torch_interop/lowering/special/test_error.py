import math

import pytest
import torch

from tests.torch_interop.lowering.harness import check

EDGES = [0.0, -0.0, 1.0, -1.0, 8.0, 26.0, -9.0, 1e4, 1e30, -1e30, math.inf, -math.inf, math.nan]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_erfcx_far_to_both_sides(dtype):
    x = torch.cat([torch.linspace(-8, 30, 153), torch.tensor(EDGES)]).to(dtype)
    check("aten.special_erfcx.default", x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_ndtri_into_its_tails(dtype):
    tails = 10.0 ** -torch.arange(1, 37, dtype=torch.float64)
    edges = torch.tensor([0.0, -0.0, 1.0, -0.1, 1.1, math.inf, -math.inf, math.nan])
    x = torch.cat([torch.linspace(0.001, 0.999, 101), tails, 1 - tails[:7], edges]).to(dtype)
    check("aten.special_ndtri.default", x)


def test_integers_and_shapes():
    for name in ("erfcx", "ndtri"):
        check(f"aten.special_{name}.default", torch.arange(-2, 4))
        check(f"aten.special_{name}.default", torch.tensor([[True], [False]]))
        check(f"aten.special_{name}.default", torch.tensor(0.25))
        check(f"aten.special_{name}.default", torch.empty(0))
