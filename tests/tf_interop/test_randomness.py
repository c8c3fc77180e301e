"""Random numbers on the device are TensorFlow's own."""

from __future__ import annotations

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
@settings(max_examples=10, deadline=None)
@given(one=SEEDS, two=SEEDS)
def test_uniform_numbers_are_the_same_to_the_bit(
    shape: tuple[int, ...], one: int, two: int
) -> None:
    fast = _FAST.setdefault(("uniform", shape), drawn(tf.random.stateless_uniform, shape))
    seed = tf.constant([one, two])
    np.testing.assert_array_equal(fast(seed), tf.random.stateless_uniform(shape, seed))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@settings(max_examples=10, deadline=None)
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
def test_integers_are_the_same(low: int, high: int) -> None:
    def draw(seed: object) -> object:
        return tf.random.stateless_uniform([50], seed, low, high, tf.int32)

    fast, seed = tf_interop.function(draw, fallback="error"), tf.constant([3, 4])
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


@pytest.mark.parametrize("algorithm", ["philox", "threefry"])
def test_a_generator_goes_on_where_tensorflow_would(algorithm: str) -> None:
    ours, theirs = (tf.random.Generator.from_seed(7, alg=algorithm) for _ in "12")
    fast = tf_interop.function(lambda: ours.normal([5]) + ours.uniform([5]))
    try:
        for _ in range(3):
            expected = theirs.normal([5]) + theirs.uniform([5])
            np.testing.assert_allclose(fast(), expected, rtol=1e-5, atol=3e-6)
    except tf.errors.InvalidArgumentError:
        # TensorFlow's kernels for the CPU do not know it either.
        assert algorithm == "threefry"
    np.testing.assert_array_equal(ours.state, theirs.state)


@pytest.mark.parametrize(
    "draw",
    [
        lambda seed: tf.random.stateless_truncated_normal([5], seed),
        lambda seed: tf.random.stateless_uniform([5], seed, dtype=tf.float64),
        lambda seed: tf.random.stateless_normal([5], seed, dtype=tf.float16),
        lambda seed: tf.random.stateless_gamma([5], seed, 1.0),
        lambda seed: tf.random.uniform([5]),
    ],
    ids=["truncated", "float64", "float16", "gamma", "stateful"],
)
def test_what_would_differ_is_refused(draw: object) -> None:
    with pytest.raises(FallbackForbidden, match="draws"):
        tf_interop.function(draw, fallback="error")(tf.constant([1, 2]))  # type: ignore[arg-type]
