"""Functions of `math` on sizes need no graph for each size."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

from pjrt_bridge.torch_interop.compat.capture import size_arithmetic
from tests.torch_interop.compat.capture.helpers import LENGTHS, check_few_graphs


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x * math.log(x.shape[0] + 1) + math.exp(-x.shape[0] / 4) + math.exp(len(x)),
        lambda x: x * math.log1p(len(x)) + math.hypot(len(x), 3) * math.fabs(x.shape[0] - 10),
        lambda x: x * math.pow(x.shape[0], -0.5) + math.isqrt(x.shape[0]),
        lambda x: x[: math.isqrt(len(x)) ** 2].reshape(math.isqrt(len(x)), -1).sum(1),
    ],
)
def test_few_graphs_serve_all_sizes(function: Callable[[torch.Tensor], torch.Tensor]) -> None:
    check_few_graphs(LENGTHS, function)


def test_roots_of_whole_numbers_are_exact() -> None:
    for root in (1, 2, 3, 46341, 2**26 - 1):
        for number in (root**2 - 1, root**2, root**2 + 1):
            assert size_arithmetic.isqrt(number) == math.isqrt(number)
