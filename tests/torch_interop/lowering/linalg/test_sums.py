import math

import pytest
import torch

from pjrt_bridge.torch_interop.lowering.registry import NotLowerable
from tests.torch_interop.lowering.harness import check, lower

torch.manual_seed(0)
INF, NAN = math.inf, math.nan


@pytest.mark.parametrize("options", [{}, {"beta": 0.5, "alpha": 2.0}, {"beta": 0}])
def test_sum_of_a_batch_of_products(options):
    x, y = torch.randn(3, 5, 4), torch.randn(3, 4, 6)
    bias = torch.full((5, 6), NAN) if options.get("beta") == 0 else torch.randn(5, 6)
    check("aten.addbmm.default", bias, x, y, **options)
    check("aten.addbmm.default", bias[:1, :1], x, y, **options)
    check("aten.addbmm.default", bias, x[:0], y[:0], **options)
    check("aten.addbmm.default", bias, x[:, :, :0], y[:, :0], **options)


def test_sum_of_a_batch_of_other_products():
    whole = [torch.randint(9, shape) for shape in [(5, 6), (3, 5, 4), (3, 4, 6)]]
    check("aten.addbmm.default", *whole, beta=2, alpha=3)
    half = [torch.randn(shape).bfloat16() for shape in [(5, 6), (1, 5, 4), (1, 4, 6)]]
    check("aten.addbmm.default", *half)


BILINEAR = ([1, 3], [0], [1, 2], [2, 3])


@pytest.mark.parametrize("rows", [8, 1, 0])
def test_bilinear_forms(rows):
    x, weight, y = torch.randn(rows, 3), torch.randn(5, 3, 4), torch.randn(rows, 4)
    check("aten._trilinear.default", x, weight, y, *BILINEAR)


@pytest.mark.parametrize("summed", [[0], [1], [2], [0, 1], [1, 2], [0, 1, 2], []], ids=str)
def test_sums_of_three_factors(summed):
    x, y, z = torch.randn(4, 3), torch.randn(4, 3), torch.randn(4, 5)
    check("aten._trilinear.default", x, y, z, [2], [2], [1], summed)


def test_bilinear_forms_of_other_types():
    whole = [torch.randint(9, shape) for shape in [(8, 3), (5, 3, 4), (8, 4)]]
    check("aten._trilinear.default", *whole, *BILINEAR)
    double = [torch.randn(shape, dtype=torch.float64) for shape in [(8, 3), (5, 3, 4), (8, 4)]]
    check("aten._trilinear.default", *double, *BILINEAR)


@pytest.mark.parametrize(
    "x",
    [
        torch.randn(3, 4, 5),
        torch.randn(3, 4, 5, dtype=torch.float64),
        torch.randn(3, 4, 5).bfloat16(),
        torch.randn(3, 4, 5).half(),
        torch.randn(0, 3),
        torch.tensor(2.5),
        torch.randn(3, 4, 5).mT,
        torch.tensor([-1e4, 1e4, 0.0, -3.0, 9999.0]),
        torch.tensor(
            [[-INF, -INF, 1, 2], [1, INF, INF, -INF], [1, NAN, 2, 3], [INF, 0, -INF, NAN]]
        ),
    ],
    ids=["single", "double", "bfloat", "half", "empty", "number", "strided", "wide", "infinite"],
)
def test_running_logarithm_of_a_sum(x):
    for dim in range(-1, min(x.dim(), 2)):
        check("aten.logcumsumexp.default", x, dim)


def test_running_logarithms_are_rounded_once():
    x = torch.randn(200) + 1000
    exact = x.double().logcumsumexp(0)
    (found,) = lower("aten.logcumsumexp.default", x, 0)
    unit = torch.finfo(torch.float32).eps * 2 ** exact.log2().floor()
    # The logarithm of the sum is wrong by much less than a unit of numbers near 1000.
    assert found is not None
    assert ((found.double() - exact).abs() <= 0.52 * unit).all()


def test_complex_logarithms_are_refused():
    with pytest.raises(NotLowerable, match="complex"):
        lower("aten.logcumsumexp.default", torch.randn(3, dtype=torch.complex64), 0)
