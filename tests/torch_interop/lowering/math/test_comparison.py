import math

import pytest
import torch

from tests.torch_interop.lowering.harness import check

X = torch.tensor([[1.0, -2.0, math.nan], [math.inf, -0.0, -math.inf]])
Y = torch.tensor([1.0, 0.0, math.nan])
N, J = torch.tensor([6, -3, 0, 127]), torch.tensor([3, 1, 5, 2])
P, Q = torch.tensor([True, True, False, False]), torch.tensor([True, False, True, False])


@pytest.mark.parametrize("name", ["eq", "ne", "lt", "le", "gt", "ge"])
def test_comparison(name):
    check(f"aten.{name}.Tensor", X, Y)
    check(f"aten.{name}.Tensor", X.bfloat16(), Y)
    check(f"aten.{name}.Tensor", N, torch.tensor(2.5))
    check(f"aten.{name}.Tensor", N.to(torch.uint8), J)
    check(f"aten.{name}.Tensor", P, Q)
    check(f"aten.{name}.Scalar", X, 0)
    check(f"aten.{name}.Scalar", N, 2.5)
    check(f"aten.{name}.Scalar", P, 1)
    check(f"aten.{name}.Scalar", torch.tensor([0.1], dtype=torch.bfloat16), 0.1)
    check(f"aten.{name}.Scalar", torch.empty(0), 0.1)


@pytest.mark.parametrize("name", ["and", "or", "xor"])
def test_logic_and_bits(name):
    check(f"aten.logical_{name}.default", X, Y)
    check(f"aten.logical_{name}.default", N, P)
    check(f"aten.bitwise_{name}.Tensor", P, Q)
    check(f"aten.bitwise_{name}.Tensor", N, J)
    check(f"aten.bitwise_{name}.Tensor", N.to(torch.uint8), J)
    check(f"aten.bitwise_{name}.Scalar", N, -4)
    check(f"aten.bitwise_{name}.Scalar_Tensor", 5, N)


@pytest.mark.parametrize("name", ["bitwise_left_shift", "bitwise_right_shift"])
@pytest.mark.parametrize("dtype", [torch.int64, torch.int8, torch.uint8], ids=str)
def test_shifts(name, dtype):
    check(f"aten.{name}.Tensor", N.to(dtype), torch.tensor([1, 2, 3, 8]).to(dtype))
    check(f"aten.{name}.Tensor_Scalar", N.to(dtype), 3)


def test_shift_amounts_beyond_the_width():
    check("aten.bitwise_left_shift.Tensor", N, torch.tensor([64, -1, 100, 2]))
    check("aten.bitwise_right_shift.Tensor", N, torch.tensor([64, -1, 100, 2]))


@pytest.mark.parametrize(
    "name",
    ["logical_not", "isnan", "isinf", "isfinite", "isposinf", "isneginf", "signbit"],
)
def test_predicates(name):
    check(f"aten.{name}.default", X)
    check(f"aten.{name}.default", X.half())
    check(f"aten.{name}.default", N)


def test_not():
    check("aten.bitwise_not.default", P)
    check("aten.bitwise_not.default", N)
    check("aten.bitwise_not.default", N.to(torch.uint8))
    check("aten.isinf.default", torch.tensor([complex(1, math.inf), 2j]))


def test_selection_broadcasts_and_promotes():
    mask = torch.tensor([[True], [False]])
    check("aten.where.self", mask, X, torch.tensor(2.5))
    check("aten.where.self", mask, N[:3], Y)
    check("aten.where.self", mask, Y.half(), torch.tensor([1.0], dtype=torch.float64))
    check("aten.where.ScalarOther", mask, X, 0)
    check("aten.where.ScalarSelf", mask, 0.5, N[:3])
    check("aten.where.Scalar", mask, 0.5, 2)
    check("aten.masked_fill.Scalar", X, X > 0, -math.inf)
    check("aten.masked_fill.Tensor", N, P, torch.tensor(9))
