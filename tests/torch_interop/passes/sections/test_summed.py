"""Gradients of what is read section by section are joined, and are those of eager."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pjrt_bridge.torch_interop.passes.sections import summed
from tests.torch_interop.helpers import compiled
from tests.torch_interop.passes.sections.counting import joined_counts

pytestmark = pytest.mark.usefixtures("fresh")

torch.manual_seed(0)
X = torch.randn(3, 6, 4)


@pytest.fixture
def joins(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Of how many sections each joined value is."""
    return joined_counts(monkeypatch, summed)


def steps(x: torch.Tensor) -> torch.Tensor:
    state = x.new_zeros(3, 4)
    for step in range(6):
        state = torch.tanh(state + x[:, step]) * x[:, step]
    return state


def rotated(x: torch.Tensor) -> torch.Tensor:
    """As rotary positions turn halves."""
    y = x * 2
    return torch.cat([-y[..., 2:], y[..., :2]], -1) * x


def interleaved(x: torch.Tensor) -> torch.Tensor:
    y = x.exp()
    even, odd = y[..., 0::2], y[..., 1::2]
    return torch.stack([even * odd, even - odd], -1)


def with_a_gap(x: torch.Tensor) -> torch.Tensor:
    y = x.exp()
    return y[:, :2] * y[:, 4:]


def sections_of_sections(x: torch.Tensor) -> torch.Tensor:
    y, total = x.exp(), x.new_zeros(3)
    for row in range(6):
        for column in range(4):
            total = total * y[:, row][:, column] + row
    return total


JOINED = {
    steps: [6],
    rotated: [2],
    interleaved: [2],
    with_a_gap: [2],
    sections_of_sections: [6, *[4] * 6],
}


def gradients(run: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    leaf = x.clone().requires_grad_()
    (run(leaf).float().square().sum()).backward()
    assert leaf.grad is not None
    return leaf.grad


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("function", JOINED)
def test_sections_are_joined(function, dtype, joins) -> None:
    x = X.to(dtype)
    found, expected = gradients(compiled(function), x), gradients(function, x)
    # A program rounds fewer values to bfloat16 than eager.
    near = {"rtol": 0.1, "atol": 0.1} if dtype == torch.bfloat16 else {}
    torch.testing.assert_close(found, expected, check_stride=True, **near)
    assert joins == JOINED[function]


def overlapping(x: torch.Tensor) -> torch.Tensor:
    return x[:, 0:4] * x[:, 2:6]


def of_few(x: torch.Tensor) -> torch.Tensor:
    return x[:, 0] * x[:, 5]


def in_two_dimensions(x: torch.Tensor) -> torch.Tensor:
    return x[:, :4] * x[..., 2:].sum()


def of_two_steps(x: torch.Tensor) -> torch.Tensor:
    return x[:, :1] * x[:, 1::2]


def of_two_lengths(x: torch.Tensor) -> torch.Tensor:
    return x[:, 0::2].sum() * x[:, 1:4:2]


@pytest.mark.parametrize(
    "function", [overlapping, of_few, in_two_dimensions, of_two_steps, of_two_lengths]
)
def test_other_sums_stay(function, joins) -> None:
    found, expected = gradients(compiled(function), X), gradients(function, X)
    torch.testing.assert_close(found, expected, check_stride=True)
    assert joins == []


def test_sums_that_something_else_reads(joins) -> None:
    def run(x, p, q):
        zeros = torch.zeros_like(x)
        one = torch.select_scatter(zeros, p, 1, 0)
        two = torch.slice_scatter(zeros, q, 1, 1, 6)
        both = one + two
        return both * 2, both + two, torch.add(one, two, alpha=3), one + 1

    arguments = X, X[:, 2] * 2, X[:, 1:]
    torch.testing.assert_close(compiled(run)(*arguments), run(*arguments), check_stride=True)
    assert joins == []


PLACES = st.one_of(
    st.integers(-5, 4),
    st.builds(slice, st.integers(0, 4), st.integers(1, 6), st.integers(1, 3)),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from((0, 1)), PLACES), min_size=1, max_size=6))
def test_any_reads(chosen: list[tuple[int, int | slice]]) -> None:
    def run(x):
        total = x.new_zeros(())
        for count, (dim, read) in enumerate(chosen):
            total = total + (count + 1) * x[(*(slice(None),) * dim, read)].square().sum()
        return total

    x = torch.arange(25.0).reshape(5, 5)
    torch.compiler.reset()
    assert torch.equal(gradients(compiled(run), x), gradients(run, x))
