import math

import pytest
import torch

from pjrt_bridge.stablehlo.interpret.interpreter import evaluate
from tests.torch_interop.lowering.harness import check, lower

INF, NAN = math.inf, math.nan
SPECIAL = torch.tensor([-INF, -2.5, -1.0, -0.5, -0.0, 0.0, 0.25, 0.5, 1.5, 2.5, INF, NAN])
INTS = torch.tensor([-7, -3, -1, 0, 1, 2, 5])
FLOAT_TYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16]


@pytest.mark.parametrize("name", ["abs", "neg", "ceil", "floor", "round", "trunc", "sign", "sgn"])
@pytest.mark.parametrize("dtype", [*FLOAT_TYPES, torch.int64, torch.int8, torch.uint8], ids=str)
def test_rounding_and_sign_are_exact(name, dtype):
    values = SPECIAL.to(dtype) if dtype.is_floating_point else INTS.to(dtype)
    check(f"aten.{name}.default", values, exact=True)


def test_signs_of_zero_survive_rounding():
    (found,) = lower("aten.trunc.default", torch.tensor([-0.5, -0.0, 0.5]))
    assert torch.signbit(found).tolist() == [True, True, False]


@pytest.mark.parametrize("decimals", [2, 0, -2])
def test_round_decimals(decimals):
    check("aten.round.decimals", torch.tensor([123.456, -50.0, 150.0, 0.125]), decimals=decimals)


def test_complex_values():
    x, y = torch.tensor([1 + 2j, -3j]), torch.tensor([0.5 - 1j, 2 + 0j])
    for name in ("add", "sub", "mul", "div"):
        check(f"aten.{name}.Tensor", x, y)
    check("aten.abs.default", x)
    check("aten.exp.default", x)
    check("aten.pow.Tensor_Scalar", x, 2)


A = torch.tensor([[1.5, -2.0, NAN], [INF, 0.0, -7.25]])
B = torch.tensor([2.0, -0.75, 3.0])
N, J = torch.tensor([7, -7, 7, -7, 0]), torch.tensor([2, 2, -2, -2, 3])
BASES = torch.tensor([0, 1, -1, -1, 2, 3])
EXPONENTS = torch.tensor([-2, -3, -3, -2, -1, 4])
U = torch.tensor([200, 7, 0], dtype=torch.uint8)

BINARY = [
    ("aten.add.Tensor", (A, B), {}),
    ("aten.add.Tensor", (A, B), {"alpha": 2.5}),
    ("aten.add.Tensor", (N, 2.5), {}),
    ("aten.add.Tensor", (N, J), {"alpha": 3}),
    ("aten.add.Tensor", (U, U), {}),
    ("aten.add.Tensor", (torch.tensor([True, False]), torch.tensor([True, True])), {}),
    ("aten.add.Tensor", (A.bfloat16(), 0.1), {}),
    ("aten.add.Tensor", (A.bfloat16(), torch.tensor(0.1)), {}),
    ("aten.add.Tensor", (A.half(), B), {}),
    ("aten.add.Scalar", (A, 2), {}),
    ("aten.add.Tensor", (torch.tensor(2), torch.tensor(1.5)), {}),
    ("aten.add.Tensor", (torch.empty(0, 3), B), {}),
    ("aten.sub.Tensor", (B, A), {"alpha": 2}),
    ("aten.sub.Scalar", (A, 2), {}),
    ("aten.rsub.Scalar", (A, 2), {}),
    ("aten.rsub.Tensor", (A, B), {"alpha": 2}),
    ("aten.mul.Tensor", (A, B), {}),
    ("aten.mul.Scalar", (A.bfloat16(), 0.3), {}),
    ("aten.mul.Tensor", (torch.tensor([2**62, 3]), torch.tensor([4, -3])), {}),
    ("aten.mul.Tensor", (torch.tensor([True, False]), torch.tensor([True, True])), {}),
    ("aten.div.Tensor", (A, B), {}),
    ("aten.div.Tensor", (N, J), {}),
    ("aten.div.Scalar", (N, 2), {}),
    ("aten.div.Tensor_mode", (N, J), {"rounding_mode": "floor"}),
    ("aten.div.Tensor_mode", (N, J), {"rounding_mode": "trunc"}),
    ("aten.div.Tensor_mode", (N, J), {"rounding_mode": None}),
    ("aten.div.Tensor_mode", (U, torch.tensor(3, dtype=torch.uint8)), {"rounding_mode": "floor"}),
    ("aten.div.Tensor_mode", (A, B), {"rounding_mode": "floor"}),
    ("aten.div.Tensor_mode", (A, B), {"rounding_mode": "trunc"}),
    ("aten.div.Tensor_mode", (A.bfloat16(), B.bfloat16()), {"rounding_mode": "floor"}),
    ("aten.div.Scalar_mode", (A, -0.3), {"rounding_mode": "floor"}),
    ("aten.div.Scalar_mode", (A, 0.0), {"rounding_mode": "floor"}),
    ("aten.floor_divide.default", (N, J), {}),
    ("aten.fmod.Tensor", (A, B), {}),
    ("aten.fmod.Tensor", (N, J), {}),
    ("aten.fmod.Scalar", (A, -1.5), {}),
    ("aten.remainder.Tensor", (A, B), {}),
    ("aten.remainder.Tensor", (N, J), {}),
    ("aten.remainder.Tensor", (U, torch.tensor(3, dtype=torch.uint8)), {}),
    ("aten.remainder.Scalar", (A, -1.5), {}),
    ("aten.remainder.Scalar", (A.half(), 0.7), {}),
    ("aten.remainder.Scalar", (A.half() * 50, 0.7), {}),
    ("aten.remainder.Tensor", (A.half() * 50, torch.tensor(0.7)), {}),
    ("aten.fmod.Scalar", (A.bfloat16() * 9, 0.7), {}),
    ("aten.remainder.Scalar_Tensor", (7, J), {}),
    ("aten.maximum.default", (A, B), {}),
    ("aten.minimum.default", (A, B), {}),
    ("aten.maximum.default", (N, J), {}),
    ("aten.fmax.default", (A, torch.tensor([NAN, 1.0, 1.0])), {}),
    ("aten.fmin.default", (A, torch.tensor([NAN, 1.0, 1.0])), {}),
    ("aten.fmin.default", (N, J), {}),
    ("aten.clamp.default", (A, -1, 2.0), {}),
    ("aten.clamp.default", (A, 3, 1), {}),
    ("aten.clamp.default", (A, None, 0), {}),
    ("aten.clamp.default", (N, -2), {}),
    ("aten.clamp.default", (N, 0.5), {}),
    ("aten.clamp.Tensor", (A, B, torch.tensor(NAN)), {}),
    ("aten.clamp_min.default", (A, 0), {}),
    ("aten.clamp_max.default", (A, 0), {}),
    ("aten.atan2.default", (torch.tensor([0.0, -0.0, 1.0]), torch.tensor([-1.0, -1.0, INF])), {}),
    ("aten.atan2.default", (N, J), {}),
    ("aten.copysign.Tensor", (A, torch.tensor([-0.0, 0.0, -INF])), {}),
    ("aten.copysign.Scalar", (N, -1), {}),
    ("aten.hypot.default", (A, B), {}),
    ("aten.hypot.default", (torch.tensor([3e30, 0.0, INF]), torch.tensor([4e30, 0.0, NAN])), {}),
    ("aten.pow.Tensor_Tensor", (A.abs(), B), {}),
    ("aten.pow.Tensor_Tensor", (BASES, EXPONENTS), {}),
    ("aten.pow.Scalar", (2, J.abs()), {}),
    ("aten.pow.Scalar", (0.5, B), {}),
    ("aten.addcmul.default", (A, B, B), {"value": 0.5}),
    ("aten.addcmul.default", (N, J, J), {"value": 2}),
    ("aten.addcdiv.default", (A, B, B + 1), {"value": 2}),
    ("aten.lerp.Scalar", (B, B * 3, 0.3), {}),
    ("aten.lerp.Tensor", (B, B * 3, torch.tensor([0.1, 0.5, 0.9])), {}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "args", "kwargs"), BINARY, ids=[f"{i}-{c[0]}" for i, c in enumerate(BINARY)]
)
def test_arithmetic(name, args, kwargs):
    check(name, *args, **kwargs)


def test_interpolation_begins_at_the_nearer_end():
    start, end = torch.tensor([1e8, 1.0]), torch.tensor([1.0, 1e8])
    for weight in (0.0, 1.0):
        check("aten.lerp.Scalar", start, end, weight, exact=True)


def test_factors_are_not_rounded_to_half_precision_first():
    """PyTorch takes a number, and a tensor without dimensions, as it is: 1.003 is 1 in bfloat16."""
    x = torch.tensor([3.0, 5.0], dtype=torch.bfloat16)
    assert not torch.equal(x * torch.tensor(1.003), x)
    for factor in (1.003, torch.tensor(1.003)):
        check("aten.mul.Tensor", x, factor, exact=True)


@pytest.mark.parametrize("kind", [float, torch.tensor, torch.DoubleTensor])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_other_numbers_are_rounded_to_half_precision_first(dtype, kind):
    number = torch.DoubleTensor([0.3])[0] if kind is torch.DoubleTensor else kind(0.3)
    x = torch.cat([torch.tensor([0.3, -0.3]), torch.linspace(0.1, 1, 50)]).to(dtype)
    check("aten.add.Tensor", x, number, exact=True)
    check("aten.sub.Tensor", x, number, exact=True)
    check("aten.sub.Tensor", x, torch.ones_like(x), alpha=0.3, exact=True)
    if kind is float:
        check("aten.rsub.Scalar", x, number, exact=True)
        check("aten.lerp.Scalar", x, x.flip(0), number, exact=True)
        return
    check("aten.sub.Tensor", number, x, exact=True)
    check("aten.mul.Tensor", number, x, exact=True)
    check("aten.div.Tensor", number, x, exact=True)
    check("aten.lerp.Tensor", x, x.flip(0), number, exact=True)
    check("aten.addcdiv.default", x, x, number, exact=True)


@pytest.mark.parametrize("mode", ["trunc", "floor"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_whole_quotients_of_half_precision(mode, dtype):
    torch.manual_seed(0)
    x, y = (torch.randn(500) * 50).to(dtype), torch.randn(500).to(dtype)
    # XLA may keep float32 between two steps that the program rounds.
    engines = [evaluate]
    check("aten.div.Tensor_mode", x, y, rounding_mode=mode, exact=True, engines=engines)


@pytest.mark.parametrize("exponent", [0, 1, 2, 3, -1, -2, 0.5, -0.5, 1.3, 2.5, -3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_power_of_floats(exponent, dtype):
    check("aten.pow.Tensor_Scalar", SPECIAL.to(dtype), exponent)


@pytest.mark.parametrize("exponent", [0, 1, 2, 3, 5, 0.5])
def test_power_of_integers(exponent):
    check("aten.pow.Tensor_Scalar", INTS, exponent)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int32, torch.int64])
def test_powers_of_integers_use_every_bit_of_the_exponent(dtype):
    limits = torch.iinfo(dtype)
    bases = torch.tensor([0, 1, 2, 3, 7, limits.max, limits.min], dtype=dtype)
    exponents = torch.tensor([0, 1, 5, 63, 64, 65, 100, limits.max], dtype=dtype)
    pairs = torch.cartesian_prod(bases, exponents).unbind(1)
    check("aten.pow.Tensor_Tensor", *(side.contiguous() for side in pairs))
    check("aten.pow.Tensor_Scalar", bases, 100)
    check("aten.pow.Tensor_Tensor", bases[:0], exponents[:0])
    check("aten.pow.Tensor_Tensor", bases[3], exponents[6])


def test_negative_powers_of_integers_vanish_but_for_units():
    bases = torch.tensor([-3, -1, 1, 2, 0, -1])
    exponents = torch.tensor([-1, -3, -2, -70, 0, torch.iinfo(torch.int64).min])
    check("aten.pow.Tensor_Tensor", bases, exponents)


def test_a_product_with_a_mask_keeps_nan():
    x, mask = torch.tensor([NAN, INF, NAN, 1.0]), torch.tensor([False, False, True, False])
    check("aten.mul.Tensor", x, mask, exact=True)
    check("aten.mul.Tensor", mask, x.double(), exact=True)


def test_complex_powers_of_zero():
    exponents = torch.tensor([1 + 1j, 1 - 2j, 0.5, 2, 3j + 1])
    check("aten.pow.Tensor_Tensor", torch.zeros(5, dtype=torch.complex64), exponents)
    check("aten.pow.Tensor_Tensor", torch.full((5,), 1 - 2j), exponents)
