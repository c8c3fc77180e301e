import math

import pytest
import torch

from tests.torch_interop.lowering.harness import check

NUMBERS = torch.tensor([0.0, -0.0, 1.5, -2.0, math.inf, -math.inf, math.nan])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_angle_of_real_numbers(dtype):
    check("aten.angle.default", NUMBERS.to(dtype))
    check("aten.angle.default", NUMBERS[2].to(dtype))


def test_angle_of_other_numbers():
    check("aten.angle.default", torch.tensor([-2, 0, 3]))
    check("aten.angle.default", torch.tensor([True, False]))
    check("aten.angle.default", torch.tensor([1 + 1j, -1j, -2 + 0j, 0j]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_polar(dtype):
    size, angle = torch.tensor([[0.0], [2.0], [-1.0]]), torch.tensor([0.0, 1.0, -math.pi])
    check("aten.polar.default", size.to(dtype), angle.to(dtype))


def test_sign_of_complex_numbers():
    check("aten.sgn.default", torch.tensor([3 + 4j, 0j, -2j, complex(-0.0, 0.0)]))


PARTS = (1.5, -0.0, math.inf, math.nan)
COMPLEX = torch.tensor([complex(real, imag) for real in PARTS for imag in PARTS])


@pytest.mark.parametrize("name", ["add", "sub", "rsub"])
@pytest.mark.parametrize("alpha", [1, 2])
@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128], ids=str)
def test_sums_with_complex_terms_that_are_not_finite(name, alpha, dtype):
    x, y = COMPLEX.to(dtype)[:, None], COMPLEX.to(dtype)
    check(f"aten.{name}.Tensor", x, y, alpha=alpha)
    check(f"aten.{name}.Tensor", x, y.real, alpha=alpha)


PARTS_OF_DIVISORS = (0.0, -0.0, 1.0, -2.0, math.inf, -math.inf, math.nan)
DIVISORS = torch.tensor(
    [complex(real, imag) for real in PARTS_OF_DIVISORS for imag in PARTS_OF_DIVISORS]
)


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128], ids=str)
def test_quotients_by_zeros_and_infinities(dtype):
    x = DIVISORS.to(dtype)
    check("aten.div.Tensor", x[:, None], x)
    check("aten.div.Tensor", x[:, None].real, x)
    check("aten.div.Tensor", x[:, None], x.real)
    check("aten.reciprocal.default", x)
    check("aten.rsqrt.default", x)
    check("aten.abs.default", x)
    check("aten.addcdiv.default", x, x.flip(0), x, value=2)
    for power in (-2, -1, -0.5, 0.5):
        check("aten.pow.Tensor_Scalar", x, power)


def test_means_of_numbers_that_are_not_finite():
    check("aten.mean.dim", torch.stack([DIVISORS, DIVISORS]), [0])


def test_a_graph_adds_products_and_quotients_that_are_not_finite():
    def f(x, y):
        return torch.addcmul(x, x, y), torch.addcdiv(x, x, y)

    x, y = DIVISORS[:, None].expand(-1, len(DIVISORS)), DIVISORS
    found = torch.compile(f, backend="pjrt")(x, y)
    torch.testing.assert_close(found, f(x, y), equal_nan=True)


def test_products_and_slices_added_that_are_not_finite():
    check("aten.addcmul.default", COMPLEX, COMPLEX.flip(0), COMPLEX)
    check("aten.index_add.default", COMPLEX, 0, torch.arange(len(COMPLEX)), COMPLEX.flip(0))
