import math

import pytest
import torch

from tests.torch_interop.lowering.harness import BOTH, check, lower

INF, NAN = math.inf, math.nan
SPECIAL = torch.tensor([-INF, -2.5, -1.0, -0.5, -0.0, 0.0, 0.25, 0.5, 1.5, 2.5, INF, NAN])
FLOAT_TYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16]

FUNCTIONS = [
    "acos", "acosh", "asin", "asinh", "atan", "atanh", "cos", "cosh", "digamma", "erf", "erfc",
    "erfinv", "exp", "exp2", "expm1", "lgamma", "log", "log10", "log1p", "log2", "reciprocal",
    "rsqrt", "sigmoid", "sin", "sinh", "sqrt", "tan", "tanh",
]  # fmt: skip


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("dtype", FLOAT_TYPES, ids=str)
def test_function_of_floats(name, dtype):
    values = torch.cat([SPECIAL, torch.linspace(-0.99, 0.99, 5)])
    check(f"aten.{name}.default", values.to(dtype))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_function_promotes_integers_and_keeps_empty_and_0d(name):
    check(f"aten.{name}.default", torch.tensor([1, 2, 3]))
    check(f"aten.{name}.default", torch.tensor([True, False]))
    check(f"aten.{name}.default", torch.tensor(0.5))
    check(f"aten.{name}.default", torch.empty(0, 3))


CUTS = [
    complex(sign * x, zero) for x in (0.5, 2.5, 30.0) for sign in (-1, 1) for zero in (0.0, -0.0)
]
CUTS += [complex(part.imag, part.real) for part in CUTS]


@pytest.mark.parametrize("name", ["sqrt", "acos", "acosh", "asin", "asinh", "atan", "atanh", "log"])
def test_signs_of_zeros_choose_the_side_of_a_branch_cut(name):
    check(f"aten.{name}.default", torch.tensor(CUTS, dtype=torch.complex128))


@pytest.mark.parametrize("name", ["log", "log2", "log10"])
def test_logarithm_of_a_complex_zero(name):
    check(f"aten.{name}.default", torch.tensor([0j, complex(-1, -0.0), complex(INF, 1)]))


PARTS = (0.0, -0.0, 1.0, -2.0, INF, -INF, NAN)


@pytest.mark.parametrize(
    "name",
    ["atan", "cos", "cosh", "exp", "exp2", "log", "log10", "log2", "rsqrt", "sigmoid", "sin",
     "sinh", "sqrt", "tan", "tanh"],
)  # fmt: skip
def test_functions_of_complex_numbers_that_are_not_finite(name):
    values = torch.tensor([complex(x, y) for x in PARTS for y in PARTS], dtype=torch.complex128)
    expected = torch.view_as_real(getattr(torch, name)(values))
    for engine in BOTH:
        (found,) = lower(f"aten.{name}.default", values, engine=engine)
        torch.testing.assert_close(torch.view_as_real(found), expected, equal_nan=True)


@pytest.mark.parametrize("part", [0.0, 1.0, INF])
def test_a_complex_power_of_zero(part):
    base = torch.zeros(3, dtype=torch.complex128)
    check("aten.pow.Tensor_Tensor", base, torch.tensor([part, complex(0, part), -part]) + 0j)
