import math

import pytest
import torch

from tests.torch_interop.lowering.harness import check, lower, run_on_cpu

CHEBYSHEV = [f"{s}chebyshev_polynomial_{k}" for s in ("", "shifted_") for k in "tuvw"]
OTHERS = [
    "hermite_polynomial_h",
    "hermite_polynomial_he",
    "laguerre_polynomial_l",
    "legendre_polynomial_p",
]
X = torch.tensor([-2.5, -1.0, -0.7, -0.0, 0.0, 0.3, 0.5, 1.0, 1.2, 3.0, math.inf, math.nan])
N = torch.tensor([-1.0, 0.0, 1.0, 2.0, 3.9, 5.0, 7.0, 9.0, 12.0])


@pytest.mark.parametrize("name", CHEBYSHEV + OTHERS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_every_element_has_its_own_degree(name, dtype):
    check(f"aten.special_{name}.default", X[:, None].to(dtype), N.to(dtype))


@pytest.mark.parametrize("name", CHEBYSHEV + OTHERS)
def test_numbers_integers_and_empty_tensors(name):
    x = torch.tensor([-2, 0, 1, 3])
    check(f"aten.special_{name}.default", x, torch.tensor([0, 1, 4, 10]))
    check(f"aten.special_{name}.n_scalar", x.float() / 4, 5)
    check(f"aten.special_{name}.x_scalar", 0.3, torch.arange(4))
    check(f"aten.special_{name}.default", torch.empty(0), torch.empty(0))


@pytest.mark.parametrize("name", CHEBYSHEV)
def test_high_degrees_between_the_ends(name):
    x = torch.linspace(0.01, 0.99, 7, dtype=torch.float64)
    check(f"aten.special_{name}.default", x, torch.tensor(300))


@pytest.mark.parametrize("limit", [(torch.float32, 128), (torch.float64, 512)], ids=str)
def test_hermite_polynomials_end_at_a_degree(limit):
    dtype, degree = limit
    n = torch.tensor([degree, degree + 1, 10**9])
    for name in OTHERS[:2]:
        check(f"aten.special_{name}.default", torch.tensor(0.1, dtype=dtype), n)


@pytest.mark.parametrize("name", CHEBYSHEV + OTHERS)
def test_a_degree_that_is_no_number_is_as_a_negative_one(name):
    n = torch.tensor([math.inf, -math.inf, math.nan])
    (found,) = lower(f"aten.special_{name}.default", torch.tensor(0.3), n, engine=run_on_cpu)
    assert found.tolist() == [0, 0, 0]


def test_a_recurrence_that_overflows_ends():
    x = torch.tensor([1.5, 0.2])
    name = "aten.special_chebyshev_polynomial_t.default"
    (found,) = lower(name, x, torch.tensor([10.0**15, 4.0]), engine=run_on_cpu)
    assert found[0].isnan()
    torch.testing.assert_close(found[1], torch.special.chebyshev_polynomial_t(x[1], 4))
