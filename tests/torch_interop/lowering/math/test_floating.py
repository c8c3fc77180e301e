import math

import pytest
import torch

from tests.torch_interop.lowering.harness import check

INF, NAN = math.inf, math.nan
NUMBERS = torch.tensor([0.0, -0.0, 1.0, -1.0, 3.5, -0.75, 2.0**-14, 60000.0, INF, -INF, NAN])
TYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_nextafter_from_everywhere_to_everywhere(dtype):
    limits = torch.finfo(dtype)
    x = torch.cat([NUMBERS.to(dtype), torch.tensor([limits.tiny, limits.max], dtype=dtype)])
    smallest = torch.tensor([1, 5], dtype=torch.int64)
    bits = {16: torch.int16, 32: torch.int32, 64: torch.int64}[limits.bits]
    x = torch.cat([x, smallest.to(bits).view(dtype), -smallest.to(bits).view(dtype)])
    for ours, theirs in ((x[:, None], x), (x[:0], x[:1])):
        check("aten.nextafter.default", ours, theirs, exact=True)


def test_nextafter_keeps_the_sign_of_zero():
    x = torch.tensor([1, -(2**31) + 1], dtype=torch.int32).view(torch.float32)
    expected = torch.nextafter(x, torch.zeros(2))
    assert torch.signbit(expected).tolist() == [False, True]
    check("aten.nextafter.default", x, torch.zeros(2), exact=True)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_frexp(dtype):
    x = torch.cat([NUMBERS.to(dtype), torch.linspace(-900, 900, 37).to(dtype)])
    check("aten.frexp.Tensor", x, exact=True)
    check("aten.frexp.Tensor", x[2], exact=True)
    check("aten.frexp.Tensor", x[:0], exact=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_ldexp_by_integers_is_exact(dtype):
    tiny = torch.finfo(dtype).smallest_normal
    x = torch.tensor([1.5, -3.0, tiny, torch.finfo(dtype).max, INF, NAN, -0.0], dtype=dtype)
    exponent = torch.tensor([-300, -30, -1, 0, 1, 100, 200, 2000])[:, None]
    x, exponent = torch.broadcast_tensors(x, exponent)
    values = torch.ldexp(x, exponent)
    # What has no leading one depends on the device.
    plain = (values == 0) | ~(values.abs() < tiny)
    check("aten.ldexp.Tensor", x[plain], exponent[plain], exact=True)


def test_ldexp_by_floats_and_of_integers():
    check("aten.ldexp.Tensor", torch.tensor([1.0, -2.0]), torch.tensor([0.5, 3.0]))
    check("aten.ldexp.Tensor", torch.arange(5), torch.arange(-2, 3), exact=True)
    check("aten.ldexp.Tensor", torch.tensor([1.5, 3.0]).half(), torch.tensor([3, -2]), exact=True)


def test_multiply_and_add():
    x, y, z = torch.randn(3, 2, 4)
    check("prims.fma.default", x, y, z)
