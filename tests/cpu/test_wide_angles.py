"""Sines, cosines and tangents of float64 in vectors: numbers of every size, special ones."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from pjrt_bridge_cpu.functions import LEAST_WIDE
from tests.cpu.helpers import emitted

FUNCTIONS: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], int]] = {
    "sine": (torch.sin, 2),
    "cosine": (torch.cos, 2),
    "tan": (torch.tan, 4),
}
"""By operation: PyTorch's, and the largest difference in last places."""

pytestmark = pytest.mark.usefixtures("fresh")

NAMES = pytest.mark.parametrize("name", FUNCTIONS)


def compared(name: str, x: torch.Tensor) -> Any:
    """How far results are from PyTorch's, in units of the last place."""
    function, _ = FUNCTIONS[name]
    found = torch.compile(lambda x: function(x), backend="pjrt")(x)
    expected = function(x)
    assert torch.equal(found.isnan(), expected.isnan())
    assert torch.equal(found.signbit(), expected.signbit())
    known = ~expected.isnan()
    unit = np.spacing(expected[known].abs().numpy())
    return ((found - expected)[known].abs().numpy() / unit).max()


@NAMES
@pytest.mark.parametrize("scale", [1e-300, 1e-8, 1.0, 100.0, 3e5, 1e6, 1e12, 1e300])
def test_numbers_are_right_to_some_last_places(name: str, scale: float) -> None:
    """From 2**20 quarter turns on by the compiler's own functions."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(4096, dtype=torch.float64, generator=generator) * scale
    assert compared(name, x) <= FUNCTIONS[name][1]


@NAMES
def test_angles_beside_multiples_of_quarter_turns(name: str) -> None:
    """There digits cancel, and the quarter is another one on each side."""
    turns = torch.tensor([1, 2, 3, 4, 1001, 2**19 - 1, 2**20 - 1], dtype=torch.float64)
    at = (turns * math.pi / 2).repeat_interleave(201)
    steps = torch.arange(-100, 101, dtype=torch.float64).repeat(len(turns))
    x = at + steps * torch.from_numpy(np.spacing(at.numpy()))
    assert compared(name, torch.cat([x, -x, x, -x])) <= FUNCTIONS[name][1]


@NAMES
@pytest.mark.parametrize("far", [1.0, 1e9])
def test_zeros_infinities_and_what_is_no_number(name: str, far: float) -> None:
    x = torch.tensor([0.0, -0.0, 5e-324, math.nan, math.pi, far], dtype=torch.float64)
    assert compared(name, x.repeat(LEAST_WIDE)) <= FUNCTIONS[name][1]
    infinite = torch.tensor([math.inf, -math.inf, 1.0], dtype=torch.float64)
    assert compared(name, infinite.repeat(LEAST_WIDE)) <= FUNCTIONS[name][1]


@NAMES
def test_small_arrays_are_left(name: str) -> None:
    function, _ = FUNCTIONS[name]
    few, many = (torch.ones(size, dtype=torch.float64) for size in (LEAST_WIDE - 1, LEAST_WIDE))
    assert "stablehlo.while" not in emitted(lambda x: function(x), few)
    assert "stablehlo.while" in emitted(lambda x: function(x), many)


@NAMES
def test_gradients(name: str) -> None:
    function, _ = FUNCTIONS[name]
    values = torch.linspace(-40, 40, LEAST_WIDE, dtype=torch.float64)
    sides = [values.clone().requires_grad_() for _ in range(2)]
    for one, x in zip(
        (function, torch.compile(lambda x: function(x), backend="pjrt")), sides, strict=True
    ):
        one(x).sum().backward()
    torch.testing.assert_close(sides[1].grad, sides[0].grad)
