import math

import pytest
import torch

from tests.torch_interop.lowering.harness import check, lower

NAMES = ["bessel_j0", "bessel_j1", "bessel_y0", "bessel_y1", "spherical_bessel_j0"]
EDGES = [0.0, -0.0, 1e-8, -1e-8, 0.5, -0.5, 5.0, -5.0, 1e4, math.inf, -math.inf, math.nan]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_values_on_both_sides_of_every_change_of_method(name, dtype):
    x = torch.cat([torch.linspace(-30, 30, 241), torch.tensor(EDGES)]).to(dtype)
    check(f"aten.special_{name}.default", x)


@pytest.mark.parametrize("name", NAMES)
def test_integers_bools_and_shapes(name):
    for x in (torch.arange(-2, 9), torch.tensor([True, False]), torch.tensor(2.5)):
        check(f"aten.special_{name}.default", x)
    check(f"aten.special_{name}.default", torch.empty(0, 3))


def test_the_first_kind_is_even_or_odd():
    x = torch.linspace(0.1, 20, 50, dtype=torch.float64)
    for order, sign in ((0, 1), (1, -1)):
        (right,) = lower(f"aten.special_bessel_j{order}.default", x)
        (left,) = lower(f"aten.special_bessel_j{order}.default", -x)
        torch.testing.assert_close(left, sign * right, rtol=0, atol=0)
