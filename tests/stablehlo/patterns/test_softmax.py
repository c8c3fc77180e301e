"""Softmax that programs write out, computed by a kernel."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pjrt_bridge import dtypes
from pjrt_bridge.stablehlo import Builder, TensorType, Value
from pjrt_bridge.stablehlo.interpret.interpreter import evaluate
from pjrt_bridge.stablehlo.patterns import for_target
from tests.stablehlo.helpers import program
from tests.stablehlo.patterns.written import F32, Fused


def softmax(b: Builder, x: Value, dim: int, *, twice: bool = False) -> Value:
    rest = [at for at in range(x.rank) if at != dim]
    largest = b.broadcast_in_dim(b.reduce_max(x, (dim,)), x.shape, rest)
    shifted = b.subtract(x, largest)
    powers = b.exp(shifted)
    total = b.broadcast_in_dim(b.reduce_sum(powers, (dim,)), x.shape, rest)
    return b.divide(b.exp(shifted) if twice else powers, total)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_along_any_dimension(data: st.DataObject) -> None:
    shape = tuple(data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=4)))
    dim, twice = data.draw(st.integers(0, len(shape) - 1)), data.draw(st.booleans())
    source = program(lambda b, x: softmax(b, x, dim, twice=twice), TensorType(shape, F32))
    kernels = Fused()
    found = for_target(source, kernels)
    # A row of one element has no dimension that could be told from others.
    assert kernels.softmaxes == ([(shape, dim)] if shape[dim] > 1 else [])
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    for array in (x, np.where(x > 0.5, np.nan, x), np.where(x > -1, -np.inf, x)):
        with np.errstate(all="ignore"):
            pair = evaluate(found, array)[0], evaluate(source, array)[0]
        np.testing.assert_allclose(*pair, rtol=1e-6)


def test_what_is_used_elsewhere_stays() -> None:
    def body(b: Builder, x: Value) -> list[Value]:
        powers = b.exp(b.subtract(x, b.broadcast_in_dim(b.reduce_max(x, (1,)), x.shape, (0,))))
        total = b.broadcast_in_dim(b.reduce_sum(powers, (1,)), x.shape, (0,))
        return [b.divide(powers, total), powers]

    kernels = Fused()
    source = program(body, TensorType((3, 3), F32))
    assert for_target(source, kernels) is source
    assert not kernels.softmaxes


@pytest.mark.parametrize("dims", [(0, 1), (1, 2)])
def test_over_several_dimensions_it_is_no_pattern(dims: tuple[int, int]) -> None:
    def body(b: Builder, x: Value) -> Value:
        (rest,) = {0, 1, 2} - set(dims)
        largest = b.broadcast_in_dim(b.reduce_max(x, dims), x.shape, (rest,))
        powers = b.exp(b.subtract(x, largest))
        return b.divide(powers, b.broadcast_in_dim(b.reduce_sum(powers, dims), x.shape, (rest,)))

    kernels = Fused()
    source = program(body, TensorType((3, 3, 3), F32))
    assert for_target(source, kernels) is source


def test_the_other_way_round_is_no_pattern() -> None:
    """The sum of each row divides a column."""

    def body(b: Builder, x: Value) -> Value:
        powers = b.exp(b.subtract(x, b.broadcast_in_dim(b.reduce_max(x, (1,)), x.shape, (0,))))
        return b.divide(powers, b.broadcast_in_dim(b.reduce_sum(powers, (1,)), x.shape, (1,)))

    source = program(body, TensorType((3, 3), F32))
    assert for_target(source, Fused()) is source


def test_one_that_is_rounded_at_its_end_is_no_kernel_of_another_type() -> None:
    """`x` is float32 and the result bfloat16: the softmax is one of float32, or none."""

    def body(b: Builder, x: Value) -> Value:
        return b.convert(softmax(b, x, 1), dtypes.of("bfloat16"))

    kernels = Fused()
    for_target(program(body, TensorType((3, 5), F32)), kernels)
    assert kernels.softmaxes == [((3, 5), 1)]
