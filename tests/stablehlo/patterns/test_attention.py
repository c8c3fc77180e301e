"""Attention that programs write out, computed by a kernel."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import permutations
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pjrt_bridge.stablehlo import Program
from pjrt_bridge.stablehlo.interpret.interpreter import evaluate
from pjrt_bridge.stablehlo.patterns import for_target
from tests.stablehlo.patterns.written import NEAR_MISSES, SQUARE, Fused, Written


def check(source: Program, arrays: list[np.ndarray[Any, Any]]) -> Fused:
    """What kernels were asked for, after a comparison of the results."""
    kernels = Fused()
    found = for_target(source, kernels)
    with np.errstate(all="ignore"):
        pairs = zip(evaluate(found, *arrays), evaluate(source, *arrays), strict=True)
        for result, expected in pairs:
            np.testing.assert_allclose(result, expected, rtol=2e-5, atol=1e-6)
    return kernels


@st.composite
def ways(draw: st.DrawFn) -> Written:
    """Attention in any of the ways that it is written."""
    size = st.integers(1, 3)
    sizes = (draw(size), draw(size), draw(size), draw(st.integers(2, 4)), draw(size))
    guarded = draw(st.booleans())
    return Written(
        sizes=sizes,
        places=draw(st.sampled_from(list(permutations((0, 1, 2, 3))))),
        joined=draw(st.booleans()),
        scale=draw(st.sampled_from([None, 0.25, 3.0])),
        divided=draw(st.booleans()),
        mask=draw(st.sampled_from(["", "add", "keep", "drop"])),
        masked=tuple(1 if draw(st.booleans()) else size for size in sizes[:4]),
        hidden=draw(st.sampled_from([-math.inf, -1e9, float(np.finfo(np.float32).min)])),
        nothing=draw(st.booleans()) and not guarded,
        guarded=guarded,
        late=draw(st.booleans()),
        turned=draw(st.booleans()),
    )


@settings(max_examples=150, deadline=None)
@given(ways(), st.integers(0, 99))
def test_any_way_of_writing_it_becomes_one_kernel(way: Written, seed: int) -> None:
    source = way.program()
    kernels = check(source, way.arrays(seed))
    ((query, key, mask),) = kernels.attentions
    batch, heads, queries, keys, size = way.sizes
    assert math.prod(query) == batch * heads * queries * size
    assert math.prod(key) == batch * heads * keys * size
    if way.mask:
        assert math.prod(mask) <= math.prod(way.masked)


@pytest.mark.parametrize("way", NEAR_MISSES, ids=lambda way: way.wrong or str(way.hidden))
def test_a_near_miss_stays_as_it_was_written(way: Written) -> None:
    kernels = check(way.program(), way.arrays(7))
    assert not kernels.attentions


@pytest.mark.parametrize("mask", ["", "keep"])
@pytest.mark.parametrize("hidden", [-math.inf, -1e9])
@pytest.mark.parametrize("guarded", [False, True])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_rows_without_keys_and_values_that_are_no_numbers(
    value: float, guarded: bool, hidden: float, mask: str
) -> None:
    way = replace(SQUARE, mask=mask, hidden=hidden, guarded=guarded)
    query, key, values, seen = way.arrays(3)
    seen[0, 0, 1] = False
    kernels = check(way.program(), [query, key, values, seen])
    assert len(kernels.attentions) == 1
    query[0, 1, 2, 3] = value
    check(way.program(), [query, key, values, seen])
    key[1, 0, 3, 1] = value
    check(way.program(), [query, key, values, seen])
    values[1, 1, 2, 1] = value
    check(way.program(), [query, key, values, seen])


def test_hidden_scores_that_are_larger_than_all_others_count() -> None:
    """Scores of -1e6 beside a mask of -1e5: the mask is what is seen."""
    way = replace(SQUARE, mask="keep", hidden=-1e5, scale=1.0)
    query, key, values, seen = way.arrays(3)
    query[...], key[...] = 1e3, -1e3
    seen[...] = np.eye(4, dtype=bool)
    kernels = check(way.program(), [query, key, values, seen])
    assert len(kernels.attentions) == 1


def test_a_value_that_is_used_elsewhere_stays() -> None:
    """Then its softmax may still be one kernel, where nothing of that is used."""
    (way,) = (way for way in NEAR_MISSES if way.wrong == "weights used")
    source = way.program()
    assert len(source.signature.results) == 2
    assert len(check(source, way.arrays(1)).softmaxes) == 1


def test_a_kernel_that_refuses_leaves_the_program() -> None:
    class Refuses(Fused):
        def attention(self, *given: Any, **how: Any) -> None:
            return None

        def softmax(self, *given: Any, **how: Any) -> None:
            return None

    source = Written(mask="drop").program()
    assert for_target(source, Refuses()) is source


@pytest.mark.parametrize(
    ("way", "count"),
    [
        (replace(SQUARE, guarded=True), 1),
        (replace(SQUARE, guarded=True, mask="keep", hidden=-math.inf), 1),
        (replace(SQUARE, guarded=True, mask="keep", hidden=-1e9), 0),
        (SQUARE, 0),
    ],
    ids=["guarded", "hidden", "finite", "softmax"],
)
def test_a_target_without_branches_has_attention_only_where_it_is_the_same(
    way: Written, count: int
) -> None:
    class Straight(Fused):
        can_branch = False

    kernels = Straight()
    found = for_target(way.program(), kernels)
    assert len(kernels.attentions) == count
    assert "stablehlo.if" not in found.text
    assert "stablehlo.case" not in found.text


GROUPED = """
func.func public @main(%q: tensor<2x5x3x2x8xf32>, %k: tensor<2x6x3x8xf32>, %v: tensor<2x6x3x8xf32>)
    -> tensor<2x5x3x2x8xf32> {
  %0 = stablehlo.dot_general %q, %k, batching_dims = [0, 2] x [0, 2], contracting_dims = [4] x [3]
    : (tensor<2x5x3x2x8xf32>, tensor<2x6x3x8xf32>) -> tensor<2x3x5x2x6xf32>
  %at = stablehlo.iota dim = 1 : tensor<5x6xi32>
  %of = stablehlo.iota dim = 0 : tensor<5x6xi32>
  %seen = stablehlo.compare GE, %of, %at : (tensor<5x6xi32>, tensor<5x6xi32>) -> tensor<5x6xi1>
  %1 = func.call @where(%seen, %0) : (tensor<5x6xi1>, tensor<2x3x5x2x6xf32>)
    -> tensor<2x3x5x2x6xf32>
  %low = stablehlo.constant dense<0xFF800000> : tensor<f32>
  %2 = stablehlo.reduce(%1 init: %low) applies stablehlo.maximum across dimensions = [4]
    : (tensor<2x3x5x2x6xf32>, tensor<f32>) -> tensor<2x3x5x2xf32>
  %3 = stablehlo.broadcast_in_dim %2, dims = [0, 1, 2, 3]
    : (tensor<2x3x5x2xf32>) -> tensor<2x3x5x2x6xf32>
  %4 = stablehlo.subtract %1, %3 : tensor<2x3x5x2x6xf32>
  %5 = stablehlo.exponential %4 : tensor<2x3x5x2x6xf32>
  %zero = stablehlo.constant dense<-0.0> : tensor<f32>
  %6 = stablehlo.reduce(%5 init: %zero) applies stablehlo.add across dimensions = [4]
    : (tensor<2x3x5x2x6xf32>, tensor<f32>) -> tensor<2x3x5x2xf32>
  %7 = stablehlo.broadcast_in_dim %6, dims = [0, 1, 2, 3]
    : (tensor<2x3x5x2xf32>) -> tensor<2x3x5x2x6xf32>
  %8 = stablehlo.divide %5, %7 : tensor<2x3x5x2x6xf32>
  %9 = stablehlo.dot_general %v, %8, batching_dims = [0, 2] x [0, 1], contracting_dims = [1] x [4]
    : (tensor<2x6x3x8xf32>, tensor<2x3x5x2x6xf32>) -> tensor<2x3x8x5x2xf32>
  %10 = stablehlo.transpose %9, dims = [0, 3, 1, 4, 2]
    : (tensor<2x3x8x5x2xf32>) -> tensor<2x5x3x2x8xf32>
  return %10 : tensor<2x5x3x2x8xf32>
}
func.func private @where(%seen: tensor<5x6xi1>, %x: tensor<2x3x5x2x6xf32>)
    -> tensor<2x3x5x2x6xf32> {
  %0 = stablehlo.broadcast_in_dim %seen, dims = [2, 4] : (tensor<5x6xi1>) -> tensor<2x3x5x2x6xi1>
  %low = stablehlo.constant dense<-2.38197633E+38> : tensor<2x3x5x2x6xf32>
  %1 = stablehlo.select %0, %x, %low : tensor<2x3x5x2x6xi1>, tensor<2x3x5x2x6xf32>
  return %1 : tensor<2x3x5x2x6xf32>
}
"""


def test_heads_that_share_keys_are_rows_of_one() -> None:
    """As `jax.nn.dot_product_attention` writes it; the mask is repeated for the heads alone."""
    random = np.random.default_rng(0)
    shapes = ((2, 5, 3, 2, 8), (2, 6, 3, 8), (2, 6, 3, 8))
    arrays = [random.standard_normal(shape).astype(np.float32) for shape in shapes]
    kernels = check(Program.from_text(GROUPED), arrays)
    assert kernels.attentions == [((2, 3, 10, 8), (2, 3, 6, 8), (1, 1, 10, 6))]
