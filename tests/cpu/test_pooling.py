"""Pooling by the custom calls: maxima, positions, gradients, averages, calls, refusals."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from pjrt_bridge import dtypes
from pjrt_bridge.errors import InvalidArgument
from pjrt_bridge.runtime import Client
from pjrt_bridge.stablehlo.builder.builder import Builder
from pjrt_bridge.stablehlo.kernel_attributes import Pooling
from pjrt_bridge.stablehlo.types import TensorType
from pjrt_bridge_cpu import pooling
from pjrt_bridge_cpu.kernels import XlaKernels
from pjrt_bridge_cpu.pooling import AVERAGES, GRADIENTS, MAXIMA, POSITIONS
from tests.cpu.helpers import emitted
from tests.extent import examples

pytestmark = pytest.mark.usefixtures("fresh")

Windows = tuple[int, int, int, int, bool]
"""Places, distance, padding, distance of places, and whether the last windows may reach out."""


@pytest.fixture(autouse=True)
def _registered(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    assert pooling.can_pool(client)
    monkeypatch.setattr(pooling, "LEAST", 1)


@st.composite
def windows(draw: st.DrawFn) -> Windows:
    count = draw(st.integers(1, 4))
    return (
        count,
        draw(st.integers(1, 4)),
        draw(st.integers(0, count // 2)),
        draw(st.integers(1, 3)),
        draw(st.booleans()),
    )


def numbers(shape: Sequence[int], special: bool, seed: int) -> torch.Tensor:
    """Numbers of which many are equal; with NaN, zeros of both signs and infinities among them."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randint(-2, 3, tuple(shape), generator=generator).float()
    if special:
        x.view(-1)[::5], x.view(-1)[::7] = float("nan"), float("-inf")
        x.view(-1)[::3] = -0.0
    return x


def spread(given: torch.Tensor, positions: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """The numbers, added up at their positions; those at positions outside are left out."""
    planes = like.shape[:2]
    inside = positions < like[0, 0].numel()
    sums = torch.zeros(*planes, like[0, 0].numel()).scatter_add_(
        2,
        torch.where(inside, positions, 0).reshape(*planes, -1),
        torch.where(inside, given, 0).reshape(*planes, -1),
    )
    return torch.empty_like(like).copy_(sums.reshape(like.shape))


@settings(max_examples=examples(60), deadline=None)
@given(
    shape=st.tuples(*(st.integers(1, high) for high in (2, 20, 11, 11))),
    how=windows(),
    last=st.booleans(),
    special=st.booleans(),
    seed=st.integers(0, 99),
)
def test_it_is_pytorchs(
    shape: tuple[int, ...], how: Windows, last: bool, special: bool, seed: int
) -> None:
    x = numbers(shape, special, seed)
    if last:
        x = x.contiguous(memory_format=torch.channels_last)
    count, step, padding, distance, reaches = how

    def pooled(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        found = functional.max_pool2d_with_indices(
            x, count, step, padding, distance, ceil_mode=reaches
        )
        return found[0], found[1]

    sides = [x.clone().requires_grad_() for _ in range(2)]
    try:
        expected = pooled(sides[0])
    except RuntimeError:
        return  # There is no window.
    torch.compiler.reset()
    found = torch.compile(pooled, backend="pjrt", dynamic=False)(sides[1])
    given = torch.randn(expected[0].shape, generator=torch.Generator().manual_seed(seed))
    # PyTorch writes outside of the memory for windows that lie in the padding alone.
    if bool((expected[1] < x[0, 0].numel()).all()):
        (gradients,) = torch.autograd.grad(expected[0], sides[0], given)
    else:
        gradients = spread(given, expected[1], x)
    (ours,) = torch.autograd.grad(found[0], sides[1], given)
    for pair in (*zip(found, expected, strict=True), (ours, gradients)):
        torch.testing.assert_close(*pair, equal_nan=True)
        assert pair[0].stride() == pair[1].stride()
    assert torch.equal(found[0].signbit(), expected[0].signbit())


@pytest.mark.parametrize("last", [False, True])
def test_large_ones_are_divided_among_threads(last: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(3, 300, 40, 50, generator=generator)
    if last:
        x = x.contiguous(memory_format=torch.channels_last)
    sides = [x.clone().requires_grad_() for _ in range(2)]
    pool = torch.nn.MaxPool2d(3, 2, 1)
    for function, side in zip((pool, torch.compile(pool, backend="pjrt")), sides, strict=True):
        function(side).square().sum().backward()
    torch.testing.assert_close(sides[1].grad, sides[0].grad)


def test_a_window_of_many_places_is_a_call() -> None:
    x = numbers((2, 3, 40, 40), False, 0)
    text = emitted(torch.nn.MaxPool2d(30, 5), x)
    assert MAXIMA in text
    found = torch.compile(torch.nn.MaxPool2d(30, 5), backend="pjrt")(x)
    torch.testing.assert_close(found, functional.max_pool2d(x, 30, 5))


def test_training_has_all_three() -> None:
    x = numbers((2, 3, 9, 9), False, 0)
    text = emitted(lambda x: torch.func.grad(lambda y: functional.max_pool2d(y, 2).sum())(x), x)
    assert all(target in text for target in (POSITIONS, GRADIENTS))


@settings(max_examples=examples(60), deadline=None)
@given(
    shape=st.tuples(*(st.integers(1, high) for high in (2, 20, 11, 11))),
    how=windows(),
    last=st.booleans(),
    counted=st.booleans(),
    seed=st.integers(0, 99),
)
def test_averages_are_pytorchs(
    shape: tuple[int, ...], how: Windows, last: bool, counted: bool, seed: int
) -> None:
    count, step, padding, _, reaches = how
    if min(shape[2:]) + 2 * padding < count:
        return
    x = numbers(shape, False, seed)
    if last:
        x = x.contiguous(memory_format=torch.channels_last)

    def pool(x: torch.Tensor) -> torch.Tensor:
        return functional.avg_pool2d(
            x, count, step, padding, ceil_mode=reaches, count_include_pad=counted
        )

    torch._dynamo.reset()
    found = torch.compile(pool, backend="pjrt", dynamic=False)(x)
    torch.testing.assert_close(found, pool(x))


def test_averages_are_calls() -> None:
    x = numbers((2, 3, 9, 9), False, 0)
    assert emitted(torch.nn.AvgPool2d(2), x).count(f"@{AVERAGES}(") == 1
    assert AVERAGES not in emitted(torch.nn.AvgPool3d(2), torch.randn(1, 2, 6, 6, 6))


def test_what_is_not_a_number_is_in_its_windows_alone() -> None:
    x = numbers((2, 3, 9, 9), True, 0)
    found = torch.compile(torch.nn.AvgPool2d(3, 2), backend="pjrt")(x)
    torch.testing.assert_close(found, functional.avg_pool2d(x, 3, 2), equal_nan=True)


def test_half_precision_is_exact() -> None:
    x = numbers((2, 3, 9, 9), True, 0).bfloat16()
    found = torch.compile(torch.nn.MaxPool2d(3, 2), backend="pjrt")(x)
    torch.testing.assert_close(found, functional.max_pool2d(x, 3, 2), equal_nan=True)


def test_other_windows_and_plugins_have_none(monkeypatch: pytest.MonkeyPatch) -> None:
    volume, doubles = torch.randn(1, 2, 6, 6, 6), torch.randn(1, 2, 9, 9).double()
    assert "pjrt_bridge.pool" not in emitted(torch.nn.MaxPool3d(2), volume)
    assert "pjrt_bridge.pool" not in emitted(torch.nn.MaxPool2d(2), doubles)
    monkeypatch.setattr(pooling, "LEAST", 1 << 13)
    assert "pjrt_bridge.pool" not in emitted(torch.nn.MaxPool2d(2), doubles.float())
    b = Builder([PLANES])
    assert XlaKernels().max_pool(b, b.parameters[0], HOW) is None


HOW = Pooling((1, 2), (2, 2), (2, 2), (2, 2), (0, 0), (1, 1))
FLOATS, PLACES = (TensorType((1, 2, 2, 3), dtypes.of(name)) for name in ("float32", "int64"))
PLANES = TensorType((1, 4, 4, 3), FLOATS.dtype)
WINDOW = np.array([2, 2, 2, 2, 0, 0, 1, 1], np.int64)

Refusal = tuple[str, Sequence[TensorType], TensorType, "np.ndarray[tuple[int], np.dtype[np.int64]]"]


def refusals() -> Iterator[tuple[str, Refusal]]:
    """By what is wrong: target, operands, result, window."""
    wide = TensorType(FLOATS.shape, dtypes.of("float64"))
    yield "two operands", (MAXIMA, (PLANES, PLANES), FLOATS, WINDOW)
    yield "no positions", (GRADIENTS, (FLOATS,), PLANES, WINDOW)
    yield "another result", (MAXIMA, (PLANES,), wide, WINDOW)
    yield "positions of floats", (GRADIENTS, (FLOATS, FLOATS), PLANES, WINDOW)
    yield "maxima as positions", (POSITIONS, (PLANES,), FLOATS, WINDOW)
    yield "another rank", (MAXIMA, (TensorType((4, 4, 3), PLANES.dtype),), FLOATS, WINDOW)
    yield "other channels", (MAXIMA, (TensorType((1, 4, 4, 2), PLANES.dtype),), FLOATS, WINDOW)
    more = TensorType((1, 3, 2, 3), PLACES.dtype)
    yield "other positions", (GRADIENTS, (FLOATS, more), PLANES, WINDOW)
    yield "no divisors", (AVERAGES, (PLANES,), FLOATS, WINDOW)
    yield "other divisors", (AVERAGES, (PLANES, FLOATS), FLOATS, WINDOW)
    yield "a short window", (MAXIMA, (PLANES,), FLOATS, WINDOW[:6])
    for at, number in ((0, 0), (2, 0), (4, -1), (6, 0), (7, 1 << 40)):
        window = WINDOW.copy()
        window[at] = number
        yield f"number {at} is {number}", (MAXIMA, (PLANES,), FLOATS, window)


CASES = dict(refusals())


@pytest.mark.parametrize("case", CASES)
def test_what_cannot_be_is_refused(client: Client, case: str) -> None:
    target, operands, result, window = CASES[case]
    b = Builder(operands)
    found = b.custom_call(target, b.parameters, [result], backend_config={"window": window})
    executable = client.compile(b.finish(found))
    arrays = [np.zeros(item.shape, item.dtype.numpy) for item in operands]
    with pytest.raises(InvalidArgument, match="Pooling"):
        executable(*arrays)


def test_positions_outside_of_a_plane_belong_to_nothing(client: Client) -> None:
    b = Builder([FLOATS, PLACES])
    found = b.custom_call(GRADIENTS, b.parameters, [PLANES], backend_config={"window": WINDOW})
    places = np.full(PLACES.shape, 16, np.int64)
    places[0, 0, 0] = (-1, 0, 15)
    (sums,) = client.compile(b.finish(found))(np.ones(FLOATS.shape, np.float32), places)
    expected = np.zeros((16, 3), np.float32)
    expected[0, 1] = expected[15, 2] = 1
    np.testing.assert_array_equal(np.asarray(sums).reshape(16, 3), expected)
