import math

import numpy as np
import pytest
import torch
from scipy import special

from pjrt_bridge.torch_interop.lowering.special.gamma_incomplete import _temme
from tests.torch_interop.lowering.harness import check, lower, run_on_cpu

INF, NAN = math.inf, math.nan


def arguments(dtype):
    """Pairs in every region: small and large, near each other and far apart."""
    torch.manual_seed(0)
    spread = torch.tensor([0.3, 3.0, 30.0, 150.0, 900.0]).repeat_interleave(40).to(dtype)
    a = torch.rand(200, dtype=dtype) * spread
    return a, (a * (1 + 0.4 * torch.randn(200, dtype=dtype))).abs()


@pytest.mark.parametrize("name", ["igamma", "igammac"])
def test_values_against_eager(name):
    # One program, which takes a second to compile.
    a, x = arguments(torch.float32)
    others = torch.tensor([0.05, 0.7, 1.05, 20.0])
    check(f"aten.{name}.default", a[:, None], torch.cat([x[:, None], others.expand(200, 4)], 1))


@pytest.mark.parametrize("name", ["gammainc", "gammaincc"])
def test_double_precision_against_scipy(name):
    # Eager's expansion for large arguments has pi in single precision.
    a, x = arguments(torch.float64)
    (found,) = lower(f"aten.{name.replace('gammainc', 'igamma')}.default", a, x, engine=run_on_cpu)
    np.testing.assert_allclose(
        found, getattr(special, name)(*map(np.asarray, (a, x))), rtol=1e-12, atol=1e-14
    )


@pytest.mark.parametrize("name", ["igamma", "igammac"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_ends(name, dtype):
    ends = torch.tensor([0.0, -0.0, -1.0, 1.0, INF, NAN, 1e-3], dtype=dtype)
    check(f"aten.{name}.default", ends[:, None], ends)
    check(f"aten.{name}.default", torch.ones(0, dtype=dtype), torch.ones(0, dtype=dtype))


def test_the_coefficients_of_the_uniform_expansion_are_those_of_the_literature():
    # DLMF 8.12.13 and the first rows that Temme gives.
    np.testing.assert_allclose(_temme()[0, :4], [-1 / 3, 1 / 12, -2 / 135, 1 / 864], rtol=1e-15)
    np.testing.assert_allclose(_temme()[1, :3], [-1 / 540, -1 / 288, 1 / 378], rtol=1e-15)
