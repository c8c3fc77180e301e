"""Functions of `math` on sizes need no graph for each size."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch.nn import functional as F  # noqa: N812

from pjrt_bridge.torch_interop.compat.capture import size_arithmetic
from tests.torch_interop.compat.capture.helpers import LENGTHS, check_few_graphs


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x * math.log(x.shape[0] + 1) + math.exp(-x.shape[0] / 4) + math.exp(len(x)),
        lambda x: x * math.log1p(len(x)) + math.hypot(len(x), 3) * math.fabs(x.shape[0] - 10),
        lambda x: x * math.log10(len(x)) + math.log10(x.shape[0] / 8),
        lambda x: x * math.pow(x.shape[0], -0.5) + math.isqrt(x.shape[0]),
        lambda x: x * math.fmod(x.shape[0], 5) + math.fmod(x.shape[0], 2.5) * math.degrees(len(x)),
        lambda x: x * math.gcd(len(x), 12) + math.gcd(30, len(x)) / math.lcm(len(x), 4),
        lambda x: F.pad(x, (0, (1 << (len(x) - 1).bit_length()) - len(x))),
        lambda x: x * torch.as_tensor(x.shape[0]) + torch.as_tensor([3, len(x)]).sum(),
        lambda x: x[: math.isqrt(len(x)) ** 2].reshape(math.isqrt(len(x)), -1).sum(1),
    ],
)
def test_few_graphs_serve_all_sizes(function: Callable[[torch.Tensor], torch.Tensor]) -> None:
    check_few_graphs(LENGTHS, function)


def test_roots_of_whole_numbers_are_exact() -> None:
    for root in (1, 2, 3, 46341, 2**26 - 1):
        for number in (root**2 - 1, root**2, root**2 + 1):
            assert size_arithmetic.isqrt(number) == math.isqrt(number)


def test_decimal_logarithms_of_powers_of_ten_are_exact() -> None:
    for power in range(16):
        assert size_arithmetic.log10(10**power) == math.log10(10**power)
        for number in (10**power + 1, 10.0**power * 1.5, 10.0**-power * 2):
            assert math.isclose(size_arithmetic.log10(number), math.log10(number), abs_tol=1e-12)


def test_numbers_of_ranges() -> None:
    for start in range(-3, 4):
        for stop in range(-3, 9):
            for step in (-3, -2, -1, 1, 2, 3):
                found = size_arithmetic.counted(start, stop, step)
                assert found == tuple(range(start, stop, step))


def test_common_divisors_by_divisors() -> None:
    for known in range(1, 41):
        shares = size_arithmetic.shares_of_divisors(known)
        for number in range(-2, 50):
            found = size_arithmetic.greatest_common_divisor(number, known, shares)
            assert found == math.gcd(number, known)
            assert size_arithmetic.least_common_multiple(number, known, shares) == math.lcm(
                number, known
            )


def test_lengths_in_bits() -> None:
    for bits in range(49):
        for number in (2**bits - 1, 2**bits):
            assert size_arithmetic.bit_length(number) == number.bit_length()
