"""Operators that torch would decompose, and that keep lowerings of their own."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

from tests.programs import note_compiled
from tests.torch_interop.helpers import compiled

pytestmark = pytest.mark.usefixtures("fresh")

SPECIAL = torch.tensor([math.nan, math.inf, -math.inf, -0.0, 0.0, 1e-42, 3.0])
ROLLED = {
    "across": torch.arange(2000.0).view(40, 50).T,
    "empty": torch.zeros(0, 3),
    "odd": torch.arange(105).view(7, 5, 3),
    "bool": torch.arange(81).view(9, 9) % 3 == 0,
    "complex": torch.arange(30.0).view(6, 5) * (1 + 2j),
}


@pytest.fixture
def texts(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The programs that are compiled."""
    return note_compiled(monkeypatch)


def test_what_is_rolled_is_moved_in_parts(texts: list[str]) -> None:
    x = torch.arange(6007.0)
    assert torch.equal(compiled(lambda x: x.roll(5000, 0))(x), x.roll(5000, 0))
    # The plugin may be tried with programs of its own before.
    (text,) = [text for text in texts if "tensor<6007xf32>" in text]
    assert "stablehlo.concatenate" in text
    assert "gather" not in text


@pytest.mark.parametrize(
    ("shifts", "dims"),
    [((2,), ()), ((5000,), ()), ((-3,), (0,)), ((0,), (0,)), ((1, -2), (0, 1)), ((1, 1), (0, 0))],
    ids=str,
)
@pytest.mark.parametrize("x", ROLLED.values(), ids=ROLLED)
def test_rolled(x: torch.Tensor, shifts: tuple[int, ...], dims: tuple[int, ...]) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x.roll(shifts, dims)

    found, expected = compiled(function)(x), function(x)
    torch.testing.assert_close(found, expected, rtol=0, atol=0, check_stride=True)


def test_special_numbers_are_rolled_as_they_are() -> None:
    found, expected = compiled(lambda x: x.roll(3))(SPECIAL), SPECIAL.roll(3)
    assert torch.equal(found.view(torch.int32), expected.view(torch.int32))


def test_rolls_by_numbers_that_change_and_their_gradients() -> None:
    def function(x: torch.Tensor, by: int) -> torch.Tensor:
        return (x.roll(by, 0) * torch.arange(len(x)).unsqueeze(1)).square().sum()

    dynamic = torch.compile(function, backend="pjrt", dynamic=True)
    for by in (1, 7, -3, 100):
        for rows in (5, 9):
            sides = [torch.ones(rows, 4).cumsum(0).requires_grad_() for _ in range(2)]
            for x, each in zip(sides, (dynamic, function), strict=True):
                each(x, by).backward()
            torch.testing.assert_close(sides[0].grad, sides[1].grad)


@pytest.mark.parametrize(
    "divide",
    [
        lambda x: x.unbind(1),
        lambda x: x.split(1, 1),
        lambda x: x.chunk(2, 1),
        lambda x: x.split([1, 2], 1),
    ],
    ids=["unbind", "split", "chunk", "sections"],
)
def test_views_that_come_in_lists_are_not_written_into(
    divide: Callable[[torch.Tensor], tuple[torch.Tensor, ...]],
) -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        whole = torch.cat([x, x])
        turned = whole.transpose(0, -3)
        part = divide(turned)[-1]
        return whole, turned, part.view_as(part)

    for f in (function, torch.compile(function, backend="pjrt", dynamic=True)):
        part = f(torch.ones(2, 3, 4, requires_grad=True))[-1]
        with pytest.raises(RuntimeError, match="a function that returns multiple views"):
            part.mul_(2)
