"""Elements at positions that depend on no argument."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pjrt_bridge import dtypes
from pjrt_bridge.stablehlo import Builder, TensorType, Value
from pjrt_bridge.stablehlo.constant_positions import (
    Run,
    constant_positions,
    read_runs,
    runs_of,
    windows_of,
)
from pjrt_bridge.stablehlo.interpret.interpreter import evaluate
from pjrt_bridge.stablehlo.kernels import Kernels
from tests.extent import examples
from tests.stablehlo.helpers import program, tensor

POSITIONS = st.one_of(
    st.lists(st.integers(-3, 9), min_size=1, max_size=24),
    st.builds(
        lambda runs: [first + step * at for first, size, step in runs for at in range(size)],
        st.lists(
            st.tuples(st.integers(0, 6), st.integers(1, 5), st.integers(-2, 2)),
            min_size=1,
            max_size=5,
        ),
    ),
)


@settings(max_examples=examples(150), deadline=None)
@given(POSITIONS, st.integers(0, 2), st.sampled_from(["int32", "int64"]))
def test_elements_are_those_at_the_positions(positions: list[int], dim: int, dtype: str) -> None:
    shape = (7, 7, 7)
    array = np.arange(343, dtype=np.float32).reshape(shape)

    def body(b: Builder, x: Value) -> Value:
        index = b.constant(np.array(positions), dtype)
        sizes = [len(positions) if d == dim else 1 for d in range(3)]
        return Kernels().gather_along(b, x, dim, b.reshape(index, sizes))

    (found,) = evaluate(program(body, tensor(*shape)), array)
    np.testing.assert_array_equal(found, array.take(np.clip(positions, 0, 6), dim))


@settings(max_examples=examples(100), deadline=None)
@given(POSITIONS)
def test_runs_are_the_positions(positions: list[int]) -> None:
    runs = runs_of(np.array(positions))
    if runs is None:
        changes = np.count_nonzero(np.diff(np.diff(positions)))
        assert changes >= 7
        return
    found = [run.first + run.step * at for run in runs for at in range(run.size)]
    assert found == positions


RUNS: dict[str, tuple[list[int], list[Run]]] = {
    "a roll": ([3, 4, 5, 0, 1, 2], [Run(3, 3, 1), Run(0, 3, 1)]),
    "a reflected border": ([2, 1, 0, 1, 2, 3], [Run(2, 3, -1), Run(1, 3, 1)]),
    "a repeated border": ([0, 0, 0, 1, 2], [Run(0, 3, 0), Run(1, 2, 1)]),
    "every other one": ([0, 2, 4, 6], [Run(0, 4, 2)]),
    "one": ([5], [Run(5, 1, 0)]),
}


@pytest.mark.parametrize("name", RUNS)
def test_a_kind_of_positions_has_few_runs(name: str) -> None:
    positions, runs = RUNS[name]
    assert runs_of(np.array(positions)) == runs


def test_positions_without_order_are_no_runs() -> None:
    assert runs_of(np.random.default_rng(0).permutation(100)) is None


X = TensorType((3, 50), dtypes.of("float32"))


@pytest.mark.parametrize(("size", "step"), [(4, 1), (6, 3), (5, 5), (3, 7)])
def test_windows(size: int, step: int) -> None:
    starts = np.arange(0, 50 - size + 1, step)
    (x,) = Builder([X]).parameters
    found = windows_of(x, 1, (starts[:, None] + np.arange(size)).reshape(-1))
    if size == step:
        assert found is None
        return
    assert found is not None
    assert found.shape == (3, len(starts), size)
    assert [(box.first, box.steps) for box in found.boxes] == [(0, (50, step, 1))]


@pytest.mark.parametrize(
    "positions",
    [[0, 1, 2, 4, 5, 6, 9, 10, 11], [0, 1, 2, 4, 5, 7], [0, 1, 0, 1, 1], [0, 1, 2, 3], [0]],
    ids=str,
)
def test_what_is_no_windows(positions: list[int]) -> None:
    (x,) = Builder([X]).parameters
    assert windows_of(x, 1, np.array(positions)) is None


def from_iota(b: Builder, make: Callable[[Value, Callable[[int], Value]], Value]) -> Any:
    """What a function computes of 0, 1, ... 9, and of numbers."""
    return make(b.iota((10,), 0, "int64"), lambda number: b.full((10,), number, "int64"))


COMPUTED: dict[str, tuple[Callable[[Builder, Value, Any], Value], Any]] = {
    "sum": (lambda b, x, of: b.add(x, of(3)), np.arange(10) + 3),
    "product": (lambda b, x, of: b.multiply(x, of(2)), np.arange(10) * 2),
    "opposite": (lambda b, x, of: b.add(b.negate(x), of(9)), 9 - np.arange(10)),
    "remainder": (lambda b, x, of: b.remainder(b.add(x, of(4)), of(10)), (np.arange(10) + 4) % 10),
    "remainder of negative numbers": (
        lambda b, x, of: b.add(b.remainder(b.subtract(x, of(5)), of(3)), of(2)),
        np.fmod(np.arange(10) - 5, 3) + 2,
    ),
    "limits": (lambda b, x, of: b.maximum(b.minimum(x, of(6)), of(2)), np.arange(10).clip(2, 6)),
    "choice": (
        lambda b, x, of: b.select(b.compare(x, of(5), "LT"), b.add(x, of(5)), b.subtract(x, of(5))),
        (np.arange(10) + 5) % 10,
    ),
    "narrow": (lambda b, x, of: b.convert(x, dtypes.of("int32")), np.arange(10)),
    "table": (
        lambda b, x, of: b.reshape(
            b.add(
                b.broadcast_in_dim(b.slice(x, [0], [2], [1]), (2, 5), [0]),
                b.broadcast_in_dim(b.constant(np.array([0, 2, 4, 6, 8])), (2, 5), [1]),
            ),
            (10,),
        ),
        None,
    ),
    "repeated table": (
        lambda b, x, of: b.reshape(
            b.add(
                b.broadcast_in_dim(b.constant(np.array([3, 1])), (2, 5), [0]),
                b.broadcast_in_dim(b.constant(np.array([0, 2, 4, 6, 8])), (2, 5), [1]),
            ),
            (10,),
        ),
        [3, 5, 7, 9, 11, 1, 3, 5, 7, 9],
    ),
}


@pytest.mark.parametrize("name", COMPUTED)
def test_positions_are_computed_as_programs_do(name: str) -> None:
    make, expected = COMPUTED[name]
    b = Builder([])
    index = from_iota(b, lambda x, of: make(b, x, of))
    found = constant_positions(index, 100)
    if expected is None:
        assert found is None
        return
    assert found is not None
    np.testing.assert_array_equal(found, expected)
    (computed,) = evaluate(b.finish([index]))
    np.testing.assert_array_equal(found, computed)


def test_positions_out_of_range_are_moved_to_the_nearest() -> None:
    b = Builder([])
    found = constant_positions(b.constant(np.array([-4, 2, 9])), 5)
    np.testing.assert_array_equal(found, [0, 2, 4])


def test_positions_of_an_argument_are_not_known() -> None:
    b = Builder([tensor(4, dtype="int64")])
    (x,) = b.parameters
    assert constant_positions(b.add(x, b.full((4,), 1, "int64")), 5) is None


def test_a_whole_dimension_is_the_array_itself() -> None:
    b = Builder([X])
    (x,) = b.parameters
    assert read_runs(b, x, 1, [Run(0, 50, 1)]) is x
