"""Operators on lists of tensors are one operator for each tensor."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.torch_interop.helpers import assert_compiled, assert_same, compiled

pytestmark = pytest.mark.usefixtures("fresh")

LIST = [torch.ones(2), torch.rand(3, 2), torch.empty(0)]
CASES: dict[str, Callable[[list[torch.Tensor]], Any]] = {
    "lists": lambda x: torch._foreach_add(x, x, alpha=2),
    "number": lambda x: torch._foreach_mul(x, 3.0),
    "numbers": lambda x: torch._foreach_addcdiv(x, x, x, [1.0, 2.0, 3.0]),
    "tensor": lambda x: torch._foreach_div(x, torch.tensor(2.0)),
    "power": lambda x: torch._foreach_pow(2.0, x),
    "one argument": torch._foreach_exp,
    "reduction": lambda x: torch._foreach_norm(x, 1),
    "interpolation": lambda x: torch._foreach_lerp(x, x, 0.5),
}


@pytest.mark.parametrize("name", CASES)
def test_they_run_on_the_device(name: str) -> None:
    function = CASES[name]
    assert_same(compiled(function)(LIST), function(LIST))
    assert_compiled("inference")


def test_arguments_are_written_into() -> None:
    expected, found = ([item.clone() for item in LIST] for _ in range(2))
    torch._foreach_add_(expected, 2)
    compiled(lambda x: torch._foreach_add_(x, 2))(found)
    assert_same(found, expected)
    assert_compiled("inference")
