import math

import pytest
import torch

from tests.torch_interop.lowering.harness import check, lower, run_on_cpu

torch.manual_seed(0)
ORDERS = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, math.inf]
X, Y = torch.randn(2, 5, 3), torch.randn(2, 4, 3)
Y[0, 0], Y[1, 1, 0] = X[0, 0], X[1, 1, 0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("p", ORDERS)
def test_distances_of_rows(dtype, p):
    x, y = X.to(dtype), Y.to(dtype)
    distances = torch.cdist(x, y, p)
    grad = torch.randn_like(distances)
    check("aten._cdist_forward.default", x, y, p, None)
    check("aten._cdist_forward.default", x[0], y, p, None)
    check("aten._cdist_backward.default", grad, x, y, p, distances)
    rows = torch.cat([x[0], x[0, :1]])
    check("aten._pdist_forward.default", rows, p)
    distances = torch.pdist(rows, p)
    check("aten._pdist_backward.default", torch.randn_like(distances), rows, p, distances)


@pytest.mark.parametrize("p", ORDERS)
@pytest.mark.parametrize("shapes", [((0, 3), (4, 3)), ((5, 3), (0, 3)), ((5, 0), (4, 0))], ids=str)
def test_distances_of_nothing(p, shapes):
    x, y = map(torch.randn, shapes)
    check("aten._cdist_forward.default", x, y, p, None)
    distances = torch.cdist(x, y, p)
    check("aten._cdist_backward.default", torch.ones_like(distances), x, y, p, distances)


@pytest.mark.parametrize("rows", [1, 2])
def test_pairs_of_few_rows(rows):
    x = torch.randn(rows, 3)
    distances = torch.pdist(x)
    check("aten._pdist_forward.default", x, 2.0)
    check("aten._pdist_backward.default", torch.ones_like(distances), x, 2.0, distances)


def test_pairs_of_many_rows():
    x = torch.randn(301, 2)
    check("aten._pdist_forward.default", x, 1.0, engines=[run_on_cpu])


def test_many_rows_are_as_exact_as_few():
    # Eager expands the squares, which leaves rounding of the coordinates between equal rows.
    x = torch.randn(40, 3) + 1000
    (found,) = lower("aten._cdist_forward.default", x, x, 2.0, None, engine=run_on_cpu)
    exact = torch.cdist(x.double(), x.double()).float()
    torch.testing.assert_close(found, exact, rtol=1e-5, atol=1e-5)
    assert bool((found.diagonal() == 0).all())


@pytest.mark.parametrize("p", [0, 1, 2, 4, 2.5, math.inf, -math.inf])
def test_distance_of_tensors(p):
    check("aten.dist.default", X, Y[:, :1], p)
    check("aten.dist.default", X, torch.tensor(1.5), p)
    check("aten.dist.default", X.bfloat16(), X.flip(0).bfloat16(), p)
    check("aten.dist.default", X.double(), X.flip(0).double(), p)
    check("aten.dist.default", X.to(torch.complex64), 1j * X.flip(0), p)
