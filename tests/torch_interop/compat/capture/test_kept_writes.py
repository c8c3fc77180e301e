"""Writes into a tensor of one double: Dynamo knows its number, and forgot what writes there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

pytestmark = pytest.mark.usefixtures("fresh")


def _lone(v: Tensor, x: Tensor) -> Any:
    v.neg_()


def _read_afterwards(v: Tensor, x: Tensor) -> Any:
    v.mul_(3)
    return v + 1


def _copied(v: Tensor, x: Tensor) -> Any:
    v.copy_(x.sum())
    return x + 1


def _through_a_view(v: Tensor, x: Tensor) -> Any:
    v.view(1).mul_(2)
    return x + 1


def _set(v: Tensor, x: Tensor) -> Any:
    v[()] = 5.0
    return x * v.item()


def _number_of_what_was_written(v: Tensor, x: Tensor) -> Any:
    return x * v.neg_().item()


def _number_before_and_after(v: Tensor, x: Tensor) -> Any:
    number = v.item()
    v.add_(1)
    return x * number + v.item()


def _before_a_break(v: Tensor, x: Tensor) -> Any:
    v.mul_(3)
    torch._dynamo.graph_break()
    return x * v


FUNCTIONS = (
    _lone,
    _read_afterwards,
    _copied,
    _through_a_view,
    _set,
    _number_of_what_was_written,
    _number_before_and_after,
    _before_a_break,
)


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("backend", ["pjrt", "aot_eager"])
def test_the_number_changes(function: Callable[..., Any], backend: str) -> None:
    on_device = torch.compile(function, backend=backend)
    for number in (1.5, 2.5, -0.5, 7.0):
        found = []
        for run in (on_device, function):
            v, x = torch.tensor(number, dtype=torch.float64), torch.arange(3.0)
            found.append((run(v, x), v))
        torch.testing.assert_close(*found, rtol=0, atol=0)


def test_numbers_that_are_read_alone_are_compiled_in_or_brought() -> None:
    def function(v: Tensor, x: Tensor) -> Any:
        return torch.full((2,), v.item()), x - v.item()

    on_device = torch.compile(function, backend="pjrt")
    for number in (1.5, 2.5, -0.5):
        v, x = torch.tensor(number, dtype=torch.float64), torch.arange(3.0)
        torch.testing.assert_close(on_device(v, x), function(v, x), rtol=0, atol=0)
