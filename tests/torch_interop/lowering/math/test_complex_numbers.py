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


def test_products_and_slices_added_that_are_not_finite():
    check("aten.addcmul.default", COMPLEX, COMPLEX.flip(0), COMPLEX)
    check("aten.index_add.default", COMPLEX, 0, torch.arange(len(COMPLEX)), COMPLEX.flip(0))
