"""Reductions of elementwise expressions: which ones are found, and what they compute."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pjrt_bridge import dtypes
from pjrt_bridge.runtime import Client
from pjrt_bridge.stablehlo import Builder, TensorType, Value
from pjrt_bridge.stablehlo.kernels import Kernels
from pjrt_bridge.stablehlo.patterns import finishing, for_target
from pjrt_bridge_cpu import expressions, reduced_expressions
from pjrt_bridge_cpu.kernels import XlaKernels
from pjrt_bridge_cpu.reduced_expressions import TARGET
from tests.extent import examples

F32 = dtypes.of("float32")


@pytest.fixture(autouse=True)
def _registered(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    assert expressions.can_compute(client)
    assert reduced_expressions.can_reduce(client)
    for name in ("LEAST", "LEAST_ROW", "LEAST_COLUMNS"):
        monkeypatch.setattr(reduced_expressions, name, 1)


def kernels() -> XlaKernels:
    found = XlaKernels()
    found.can_compute = found.can_reduce = True
    return found


@settings(max_examples=examples(150), deadline=None)
@given(st.data())
def test_the_numbers_are_those_of_numpy(client: Client, data: st.DataObject) -> None:
    """Over any dimensions, of a value in any order in memory."""
    shape = data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=4))
    rank = len(shape)
    order = data.draw(st.permutations(range(rank)))
    dims = data.draw(st.sets(st.integers(0, rank - 1), min_size=1))
    how = data.draw(st.sampled_from(["sum", "max", "min"]))
    x = np.random.default_rng(0).normal(0, 9, shape).astype(np.float32)
    source = Builder([TensorType(x.shape, F32)])
    turned = source.transpose(source.parameters[0], order)
    value = source.multiply(turned, turned)
    reduced = Kernels().reduce(source, how, value, sorted(dims))
    program = for_target(source.finish([reduced]), kernels())
    expected = {"sum": np.sum, "max": np.max, "min": np.min}[how](
        x.transpose(order) ** 2, axis=tuple(dims)
    )
    found = np.asarray(client.compile(program)(x)[0])
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    assert (TARGET in program.text) == (math.prod(shape[order[dim]] for dim in dims) > 1)


@settings(max_examples=examples(150), deadline=None)
@given(st.data())
def test_dimensions_may_be_merged_and_divided_before(client: Client, data: st.DataObject) -> None:
    """As norms of groups do, where channels are last in memory."""
    shape = data.draw(st.lists(st.sampled_from([1, 2, 3, 4, 6]), min_size=2, max_size=4))
    order = data.draw(st.permutations(range(len(shape))))
    x = np.random.default_rng(0).normal(0, 9, shape).astype(np.float32)
    turned = x.transpose(order)
    cut = data.draw(st.integers(1, len(shape)))
    merged = [math.prod(turned.shape[:cut]), *turned.shape[cut:]]
    if data.draw(st.booleans()) and not merged[0] % 2:
        merged[:1] = [2, merged[0] // 2]
    dims = data.draw(st.sets(st.integers(0, len(merged) - 1), min_size=1))
    source = Builder([TensorType(x.shape, F32)])
    value = source.reshape(source.transpose(source.parameters[0], order), merged)
    reduced = Kernels().reduce(source, "sum", source.multiply(value, value), sorted(dims))
    program = for_target(source.finish([reduced]), kernels())
    expected = (turned.reshape(merged) ** 2).sum(tuple(dims))
    found = np.asarray(client.compile(program)(x)[0])
    np.testing.assert_allclose(found, expected, rtol=1e-5)


Make = Callable[[Builder, Value], Sequence[Value]]


def written(make: Make, shape: tuple[int, ...] = (64, 512)) -> str:
    own = kernels()
    b = Builder([TensorType(shape, F32)], finishing=finishing(own))
    return b.finish(make(b, b.parameters[0])).text


def test_what_is_in_memory_anyway_is_read() -> None:
    def make(b: Builder, x: Value) -> list[Value]:
        y = b.exp(b.multiply(x, x))
        return [y, b.reduce_sum(y, (0,))]

    text = written(make)
    (line,) = (line for line in text.splitlines() if TARGET in line)
    # One step: it reads.
    assert "steps = dense<0> : tensor<5xi64>" in line


def test_norms_of_groups_read_channels_last_as_they_lie() -> None:
    def make(b: Builder, x: Value) -> list[Value]:
        channels_first = b.transpose(x, (0, 3, 1, 2))
        return [b.reduce_sum(b.reshape(channels_first, (1, 64, 48)), (2,))]

    text = written(make, (4, 6, 8, 16))
    assert text.count(TARGET) == 1
    assert "stablehlo.transpose" not in text


def test_what_is_only_reduced_is_not_written() -> None:
    text = written(lambda b, x: [b.reduce_sum(b.exp(b.multiply(x, x)), (0,))])
    assert text.count("custom_call") == 1


def test_dimensions_apart_are_reduced_one_after_the_other() -> None:
    text = written(lambda b, x: [b.reduce_sum(x, (0, 2))], (8, 64, 50))
    assert text.count(TARGET) == 2


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda b, x: [b.reduce_prod(x, (0,))], id="a product"),
        pytest.param(lambda b, x: [b.reduce_sum(b.cbrt(x), (0,))], id="no expression"),
        pytest.param(lambda b, x: [b.reduce_sum(b.convert(x, "float64"), (0,))], id="64 bits"),
    ],
)
def test_others_are_loops(make: Make) -> None:
    text = written(make)
    assert TARGET not in text
    assert "stablehlo.reduce(" in text


def test_what_is_no_expression_is_reduced_in_parts() -> None:
    """A reduction that a lowering has left to the end becomes what it would have been at once."""
    own = kernels()
    b = Builder([TensorType((64, 512), F32)], finishing=finishing(own))
    program = b.finish([own.reduce(b, "sum", b.cbrt(b.parameters[0]), (1,))])
    assert "stablehlo.optimization_barrier" in program.text
