from collections.abc import Callable

import pytest
import torch

from tests.torch_interop.helpers import compiled
from tests.torch_interop.lowering.harness import check


@pytest.mark.parametrize(
    "dtype", [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8], ids=str
)
@pytest.mark.parametrize("name", ["gcd", "lcm"])
def test_divisors_and_multiples(name, dtype):
    numbers = torch.tensor([0, 1, 2, 6, 9, 12, 35, 64, 97, 120]).to(dtype)
    if dtype.is_signed:
        numbers = torch.cat([numbers, -numbers])
    check(f"aten.{name}.default", numbers[:, None], numbers)
    check(f"aten.{name}.default", numbers[3], numbers[4])
    check(f"aten.{name}.default", numbers[:0], numbers[:0])


def test_types_are_promoted_and_large_numbers_take_many_steps():
    fibonacci = torch.tensor([7540113804746346429, 2147483647, 12])
    check("aten.gcd.default", fibonacci, torch.tensor([4660046610375530309, 2, 18]))
    check("aten.gcd.default", torch.tensor([12, 7]), torch.tensor([8, 14], dtype=torch.int8))


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.int32, torch.int64], ids=str)
def test_divisors_of_the_smallest_number_have_the_sign_of_eager(dtype: torch.dtype) -> None:
    limits = torch.iinfo(dtype)
    numbers = torch.tensor([limits.min, limits.min + 1, limits.max, 0, -1, 3, 12, 100], dtype=dtype)
    x, y = torch.meshgrid(numbers, numbers, indexing="ij")
    assert torch.equal(compiled(torch.gcd)(x, y), torch.gcd(x, y))


@pytest.mark.parametrize("dtype", [torch.int8, torch.int32, torch.int64])
@pytest.mark.parametrize(
    "function",
    [
        torch.remainder,
        torch.fmod,
        torch.floor_divide,
        lambda x, y: torch.div(x, y, rounding_mode="trunc"),
        torch.lcm,
    ],
    ids=["remainder", "fmod", "floor_divide", "divide", "lcm"],
)
def test_the_smallest_integer_ends_no_process(
    function: Callable[..., torch.Tensor], dtype: torch.dtype
) -> None:
    least = torch.iinfo(dtype).min
    run = torch.compile(function, backend="pjrt")
    # PyTorch's own kernels divide by -1 in hardware, which some processors trap.
    found = run(torch.tensor([least, 7], dtype=dtype), torch.tensor([-1, -1], dtype=dtype))
    expected = {torch.remainder: [0, 0], torch.fmod: [0, 0], torch.lcm: [least, 7]}
    assert found.tolist() == expected.get(function, [least, -7])
