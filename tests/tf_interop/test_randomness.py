"""Random numbers on the device are TensorFlow's own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from pjrt_bridge import tf_interop
from pjrt_bridge.errors import FallbackForbidden

SEEDS = st.integers(-(2**31), 2**31 - 1)


def drawn(draw: object, shape: tuple[int, ...]) -> tf_interop.Function:
    return tf_interop.function(lambda seed: draw(shape, seed), fallback="error")  # type: ignore[operator]


SHAPES = [(), (1,), (7,), (3, 5), (0,), (64,)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@settings(max_examples=10)
@given(one=SEEDS, two=SEEDS)
def test_uniform_numbers_are_the_same_to_the_bit(
    shape: tuple[int, ...], one: int, two: int
) -> None:
    fast = _FAST.setdefault(("uniform", shape), drawn(tf.random.stateless_uniform, shape))
    seed = tf.constant([one, two])
    np.testing.assert_array_equal(fast(seed), tf.random.stateless_uniform(shape, seed))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@settings(max_examples=10)
@given(one=SEEDS, two=SEEDS)
def test_normal_numbers_are_the_same_to_rounding(
    shape: tuple[int, ...], one: int, two: int
) -> None:
    fast = _FAST.setdefault(("normal", shape), drawn(tf.random.stateless_normal, shape))
    seed = tf.constant([one, two])
    np.testing.assert_allclose(
        fast(seed), tf.random.stateless_normal(shape, seed), rtol=1e-5, atol=3e-6
    )


_FAST: dict[object, tf_interop.Function] = {}


@pytest.mark.parametrize(("low", "high"), [(0, 10), (-5, 5), (0, 2**31 - 1)])
@pytest.mark.parametrize("type", [tf.int32, tf.int64], ids=["int32", "int64"])
def test_integers_are_the_same(type: Any, low: int, high: int) -> None:
    def draw(seed: object) -> object:
        return tf.random.stateless_uniform([50], seed, low, high, tf.int32)

    fast = tf_interop.function(draw, fallback="error")
    for pair in ([3, 4], [0, -1], [-5, 7], [2**31 - 1, -(2**31)]):
        seed = tf.constant(pair, type)
        np.testing.assert_array_equal(fast(seed), draw(seed))


def test_seeds_of_64_bits() -> None:
    fast = drawn(tf.random.stateless_uniform, (50,))
    for pair in ([2**40 + 3, 1], [3, 1], [-(2**63), 2**63 - 1]):
        seed = tf.constant(pair, tf.int64)
        np.testing.assert_array_equal(fast(seed), tf.random.stateless_uniform([50], seed))


def test_seeds_that_are_divided() -> None:
    def draw(seed: object) -> object:
        return (
            tf.random.split(seed, 3),
            tf.random.fold_in(seed, -9),
            tf.random.stateless_uniform([4], tf.random.fold_in(seed, 5)),
        )

    fast = tf_interop.function(draw, fallback="error")
    for pair in ([3, 4], [-5, 7]):
        seed = tf.constant(pair)
        for found, expected in zip(fast(seed), draw(seed), strict=True):  # type: ignore[call-overload]
            np.testing.assert_array_equal(found, expected)


def test_functions_of_tensorflow_1() -> None:
    def draw(seed: object) -> object:
        return tf.raw_ops.StatelessRandomUniform(shape=[5], seed=seed)

    fast, seed = tf_interop.function(draw, fallback="error"), tf.constant([-3, 4])
    np.testing.assert_array_equal(fast(seed), draw(seed))


def test_ranges_and_scales() -> None:
    def draw(seed: object) -> object:
        return (
            tf.random.stateless_uniform([50], seed, -2.0, 5.0),
            tf.random.stateless_normal([50], seed, 3.0, 0.5),
        )

    fast, seed = tf_interop.function(draw, fallback="error"), tf.constant([3, 4])
    for found, expected in zip(fast(seed), draw(seed), strict=True):  # type: ignore[call-overload]
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_a_generator_goes_on_where_tensorflow_would() -> None:
    ours, theirs = (tf.random.Generator.from_seed(7, alg="philox") for _ in "12")
    fast = tf_interop.function(lambda: ours.normal([5]) + ours.uniform([5]), fallback="error")
    for _ in range(3):
        expected = theirs.normal([5]) + theirs.uniform([5])
        np.testing.assert_allclose(fast(), expected, rtol=1e-5, atol=3e-6)
    np.testing.assert_array_equal(ours.state, theirs.state)


@pytest.mark.parametrize(
    "draw",
    [
        lambda seed: tf.random.stateless_truncated_normal([5], seed),
        lambda seed: tf.random.stateless_uniform([5], seed, dtype=tf.float64),
        lambda seed: tf.random.stateless_normal([5], seed, dtype=tf.float16),
        lambda seed: tf.raw_ops.StatelessRandomUniformInt(shape=[5], seed=seed, minval=0, maxval=9),
        lambda seed: tf.random.uniform([5]),
    ],
    ids=["truncated", "float64", "float16", "integers of TensorFlow 1", "stateful"],
)
def test_what_would_differ_is_refused(draw: object) -> None:
    with pytest.raises(FallbackForbidden, match="draws"):
        tf_interop.function(draw, fallback="error")(tf.constant([1, 2]))  # type: ignore[arg-type]
