import math

import pytest
import torch

from tests.torch_interop.lowering.harness import check

NAMES = [
    "i0",
    "special_i0e",
    "special_i1",
    "special_i1e",
    "special_modified_bessel_i0",
    "special_modified_bessel_i1",
    "special_modified_bessel_k0",
    "special_modified_bessel_k1",
    "special_scaled_modified_bessel_k0",
    "special_scaled_modified_bessel_k1",
]
EDGES = [0.0, -0.0, 2.0, -2.0, 8.0, -8.0, 1e-30, 60.0, 1e4, math.inf, -math.inf, math.nan]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_values_on_both_sides_of_every_change_of_method(name, dtype):
    x = torch.cat([torch.linspace(-20, 20, 161), torch.tensor(EDGES)]).to(dtype)
    check(f"aten.{name}.default", x)


@pytest.mark.parametrize("name", NAMES)
def test_integers_bools_and_shapes(name):
    for x in (torch.arange(-2, 10), torch.tensor([True, False]), torch.tensor(0.5)):
        check(f"aten.{name}.default", x)
    check(f"aten.{name}.default", torch.empty(0, 3))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision_is_computed_in_float32(dtype):
    x = torch.linspace(-9, 9, 37).to(dtype)
    for name in ("i0", "special_i1", "special_i1e"):
        check(f"aten.{name}.default", x)
