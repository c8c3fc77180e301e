"""Sections that are written into a value are joined, whatever is read of it between."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pjrt_bridge.torch_interop.passes.sections import written
from tests.torch_interop.helpers import compiled
from tests.torch_interop.passes.sections.counting import joined_counts

pytestmark = pytest.mark.usefixtures("fresh")

torch.manual_seed(0)
X = torch.randn(3, 6, 4)


@pytest.fixture
def joins(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Of how many sections each joined value is."""
    return joined_counts(monkeypatch, written)


def steps(x: torch.Tensor) -> torch.Tensor:
    """A loop that writes the result of each step."""
    out, state = torch.zeros_like(x), x[:, 0]
    for step in range(6):
        state = torch.tanh(state + x[:, step])
        out[:, step] = state
    return torch.relu(out)


def recurrence(x: torch.Tensor) -> torch.Tensor:
    """A step reads what the one before wrote."""
    y = x.clone()
    for step in range(1, 6):
        y[:, step] = y[:, step] + torch.tanh(y[:, step - 1])
    return y


def backwards(x: torch.Tensor) -> torch.Tensor:
    y = torch.empty_like(x)
    y[:, -1] = x[:, -1]
    for step in reversed(range(5)):
        y[:, step] = x[:, step] + 0.9 * y[:, step + 1]
    return y


def halves(x: torch.Tensor) -> torch.Tensor:
    y = torch.empty_like(x)
    y[..., :2] = torch.sin(x[..., 2:])
    y[..., 2:] = torch.cos(x[..., :2])
    return y * x


def every_second(x: torch.Tensor) -> torch.Tensor:
    y = torch.empty_like(x)
    y[:, 0::2] = torch.sin(x[:, 1::2])
    y[:, 1::2] = torch.cos(x[:, 0::2])
    return y


def every_third(x: torch.Tensor) -> torch.Tensor:
    y = torch.empty_like(x)
    for first in (2, 0, 1):
        y[:, first::3] = x[:, first::3] * first
    return y + 1


def written_twice(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    for step in (0, 1, 2, 3, 1, 0, 4, 5):
        y[:, step] = y[:, step] + step
    return y


def in_two_dimensions(x: torch.Tensor) -> torch.Tensor:
    y = torch.zeros(3, 4)
    for row in range(3):
        for column in range(4):
            y[row, column] = x[row, :, column].sum()
    return y * 2


def most(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    y[:, 1] = x[:, 0]
    y[:, 3:5] = x[:, 1:3]
    y[:, 2:3] = x[:, 5:]
    return y.exp()


JOINED = {
    steps: [6],
    recurrence: [5],
    backwards: [6],
    halves: [2],
    every_second: [2],
    every_third: [3],
    written_twice: [6],
    most: [3],
}


@pytest.mark.parametrize("function", JOINED)
def test_sections_are_joined(function: Callable[[torch.Tensor], torch.Tensor], joins) -> None:
    found, expected = compiled(function)(X), function(X)
    torch.testing.assert_close(found, expected, check_stride=True)
    assert joins == JOINED[function]


def test_sections_of_sections_are_joined(joins) -> None:
    found, expected = compiled(in_two_dimensions)(X), in_two_dimensions(X)
    torch.testing.assert_close(found, expected, check_stride=True)
    assert sorted(joins) == [3, 4, 4, 4]


def one_of_many(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    y[:, 1] = x[:, 0]
    y[:, 4] = x[:, 2]
    return y


def overlapping(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    y[:, 0:4] = x[:, 2:6]
    y[:, 2:5] = x[:, 0:3]
    return y


def read_between(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    y[:, 0:3] = x[:, 3:]
    total = y.sum()
    y[:, 3:] = total
    return y


def of_two_steps(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    y[:, 0::2] = x[:, 1::2]
    y[:, 1::3] = x[:, 0::3]
    return y


def of_two_lengths(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    y[:, 0::2] = x[:, 1::2]
    y[:, 1:4:2] = x[:, :2]
    return y


@pytest.mark.parametrize(
    "function", [one_of_many, overlapping, read_between, of_two_steps, of_two_lengths]
)
def test_other_writes_stay(function: Callable[[torch.Tensor], torch.Tensor], joins) -> None:
    found, expected = compiled(function)(X), function(X)
    torch.testing.assert_close(found, expected, check_stride=True)
    assert joins == []


@pytest.mark.parametrize("function", JOINED)
def test_gradients(function: Callable[[torch.Tensor], torch.Tensor]) -> None:
    sides = []
    for run in (function, compiled(function)):
        x = X.clone().requires_grad_()
        run(x).pow(2).sum().backward()
        sides.append(x.grad)
    torch.testing.assert_close(*reversed(sides))


def test_arguments_that_are_written() -> None:
    def write(x, y):
        for step in range(6):
            x[:, step] = y[:, 5 - step] + x[:, step - 1]
        return x[:, 2], x[:, 4:]

    sides = []
    for run in (write, compiled(write)):
        x = X.clone()
        sides.append((x, *run(x, X)))
    torch.testing.assert_close(*reversed(sides), check_stride=True)
    sides[1][1].zero_()
    assert not sides[1][0][:, 2].any()


def test_results_that_are_parts_keep_their_strides() -> None:
    def sections(x):
        y = torch.empty_like(x)
        for step in range(6):
            y[:, step] = x[:, step] * step
        return y[:, 3], y[:, 2:3]

    found, expected = compiled(sections)(X), sections(X)
    torch.testing.assert_close(found, expected, check_stride=True)


def test_what_addresses_the_storage_of_a_section_sees_the_others() -> None:
    def sections(x):
        y = x.clone()
        first, rest = y[:, :1], y[:, 1:]
        first.mul_(3)
        return rest.as_strided((3, 2), (24, 4), 0) * 2, rest[:, 0] * 2

    found, expected = compiled(sections)(X), sections(X)
    torch.testing.assert_close(found, expected)


PLACES = st.one_of(
    st.integers(-5, 4),
    st.builds(slice, st.integers(0, 4), st.integers(1, 6), st.integers(1, 3)),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from((0, 1)), PLACES, PLACES), min_size=1, max_size=7))
def test_any_writes_and_reads(chosen: list[tuple[int, int | slice, int | slice]]) -> None:
    def run(x, base):
        y, total = base.clone(), base.new_zeros(())
        for count, (dim, write, read) in enumerate(chosen):
            at = (slice(None),) * dim
            total = total + (count + 1) * y[(*at, read)].sum()
            y[(*at, write)] = y[(*at, write)] * 2 + x[(*at, write)] + count
        return y, total

    base, x = torch.arange(25).reshape(5, 5), torch.arange(25).reshape(5, 5).flip(0)
    torch.compiler.reset()
    found, expected = compiled(run)(x, base), run(x, base)
    assert torch.equal(found[0], expected[0])
    assert found[1] == expected[1]
