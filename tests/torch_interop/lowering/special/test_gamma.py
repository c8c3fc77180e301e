import math

import pytest
import torch

from tests.torch_interop.lowering.harness import check, lower, run_on_cpu

INF, NAN = math.inf, math.nan
EDGES = torch.tensor([0.0, -0.0, 1e-8, -1e-8, 0.5, 1.0, -3.0, 100.0, 1e4, INF, -INF, NAN])
X = torch.cat([torch.linspace(-9.7, 20.3, 121), EDGES])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_log_gamma(dtype):
    check("aten.lgamma.default", X[X > -2.4].to(dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_log_gamma_next_to_its_roots(dtype):
    eps = torch.finfo(dtype).eps
    apart = torch.tensor([0.0, 1e-6, 1e-3, 0.1, 0.3, 0.499, 0.5]).double()
    x = torch.cat([root + sign * apart for root in (1, 2) for sign in (1, -1)]).to(dtype)
    (found,) = lower("aten.lgamma.default", x, engine=run_on_cpu)
    expected = torch.lgamma(x.double())
    assert bool(((found - expected).abs() <= 16 * eps * expected.abs()).all())


def test_log_gamma_of_bools_and_integers():
    (found,) = lower("aten.lgamma.default", torch.tensor([True, False]), engine=run_on_cpu)
    assert found.tolist() == [0.0, INF]
    check("aten.lgamma.default", torch.arange(-3, 30))


@pytest.mark.parametrize("n", range(5))
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_polygamma(n, dtype):
    x = X if n != 1 else X[X != -3]  # Eager's trigamma at its poles is what pi is rounded to.
    check("aten.polygamma.default", n, x.to(dtype))


@pytest.mark.parametrize("n", range(4))
def test_polygamma_of_integers_and_shapes(n):
    check("aten.polygamma.default", n, torch.arange(1, 6))
    check("aten.polygamma.default", n, torch.tensor(1.5))
    check("aten.polygamma.default", n, torch.empty(0, 2))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_zeta(dtype):
    x = torch.tensor([0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 10.0, 30.0, INF, NAN]).to(dtype)
    check("aten.special_zeta.default", x, X[:, None].to(dtype))


def test_zeta_far_from_0_takes_no_longer():
    q = torch.tensor([-1e9 + 0.25, -12345.5, 1e9], dtype=torch.float64)
    (found,) = lower("aten.special_zeta.default", torch.tensor(2.0, dtype=torch.float64), q)
    # The series over all k is pi ** 2 / sin(pi q) ** 2, and 1 / q as good as 0.
    expected = [math.pi**2 * 2, math.pi**2, 0.0]
    torch.testing.assert_close(found, torch.tensor(expected).double(), rtol=1e-4, atol=1e-8)


def test_zeta_with_numbers():
    q = torch.tensor([0.5, 2.0])
    check("aten.special_zeta.self_scalar", 3, q)
    check("aten.special_zeta.other_scalar", q + 1, 0.25)
    check("aten.special_zeta.default", torch.tensor([2, 3]), torch.tensor([1, 5]))
