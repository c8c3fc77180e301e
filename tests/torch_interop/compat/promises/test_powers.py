"""Powers whose promises are the bridge's own."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch

from pjrt_bridge.runtime import Client
from pjrt_bridge.torch_interop import export
from tests.torch_interop.helpers import compiled

BOOLS = torch.tensor([[True, False, True], [False, False, True]])


def raised(base: Any, exponent: Any) -> torch.Tensor:
    return torch.pow(base, exponent)


def raising(exponent: Any, base: Any) -> torch.Tensor:
    return torch.pow(base, exponent)


CASES = [
    *itertools.product((torch.bool, torch.uint8, torch.float16), (raised,), (True, False)),
    # PyTorch has no power of a bool by a tensor of bools.
    *itertools.product((torch.uint8, torch.float16), (raising,), (True, False)),
    *itertools.product(
        (torch.bool, torch.uint8, torch.float16), (raised, raising), (0, 1, 2, 2.0, 0.5)
    ),
]


@pytest.mark.parametrize(("dtype", "power", "number"), CASES)
def test_powers_have_the_type_that_eager_gives(
    dtype: torch.dtype, power: Callable[..., torch.Tensor], number: Any
) -> None:
    torch._dynamo.reset()
    x = BOOLS.to(dtype)
    for given in (x, x.t(), x[0, 0], x[:0]):
        expected, found = power(given, number), compiled(lambda y: power(y, number))(given)
        assert (found.dtype, found.stride()) == (expected.dtype, expected.stride())
        assert torch.equal(found, expected)


def test_exported_powers_of_bools_are_bools(client: Client) -> None:
    class Power(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x**True

    with export(Power(), (BOOLS,)).load_on(client) as loaded:
        assert torch.equal(torch.as_tensor(loaded(BOOLS)), BOOLS)
