"""Where compiled functions are called: under tapes, in other functions, in threads."""

from __future__ import annotations

import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from pjrt_bridge import tf_interop
from pjrt_bridge.errors import (
    HostFallbackWarning,
)
from tests.tf_interop.helpers import numbers
from tests.tf_interop.test_function import on_device, same


def test_under_a_tape_gradients_flow() -> None:
    weights = tf.Variable(numbers(3, 3))
    fast, x = tf_interop.function(lambda x: tf.tanh(x @ weights), fallback="error"), numbers(3, 3)

    def gradients(function: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(function(x))
        return tape.gradient(loss, weights)

    expected = gradients(lambda x: tf.tanh(x @ weights))
    with pytest.warns(HostFallbackWarning, match="open the tape inside of the function"):
        found = gradients(fast)
    same(found, expected)
    # Nothing but the call tells the tape of the variable, in later calls, too.
    for _ in range(2):
        fast(x)
        same(gradients(fast), expected)


def test_a_tape_that_watches_no_variables_or_stands_still() -> None:
    weights = tf.Variable(numbers(3, 3))
    fast, x = tf_interop.function(lambda x: tf.tanh(x @ weights), fallback="error"), numbers(3, 3)
    fast(x)
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        found = fast(x)
    assert tape.gradient(found, weights) is None
    with tf.GradientTape() as tape, tape.stop_recording():
        found = fast(x)
    assert tape.gradient(found, weights) is None


def test_forward_and_second_derivatives() -> None:
    fast, x = tf_interop.function(lambda x: tf.tanh(x) * 2), numbers(4)
    fast(x)
    slope = 1 - tf.tanh(x) ** 2
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", HostFallbackWarning)
        with tf.autodiff.ForwardAccumulator(x, tf.ones(4)) as forward:
            found = fast(x)
        same(forward.jvp(found), 2 * slope)
        with tf.GradientTape() as outer:
            outer.watch(x)
            with tf.GradientTape() as inner:
                inner.watch(x)
                found = fast(x)
            first = inner.gradient(found, x)
        same(outer.gradient(first, x), -4 * tf.tanh(x) * slope)


def test_a_tape_inside() -> None:
    weights = tf.Variable(numbers(3, 3))

    def step(x: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.tanh(x @ weights))
        return tape.gradient(loss, weights)

    fast, x = tf_interop.function(step, fallback="error"), numbers(3, 3)
    same(fast(x), step(x))
    assert on_device(fast, x)


def test_inside_of_another_function() -> None:
    fast = tf_interop.function(lambda x: tf.exp(x), fallback="error")

    @tf.function
    def outer(x: Any) -> Any:
        return fast(x) * 2

    same(outer(numbers(3)), tf.exp(numbers(3)) * 2)


def test_inside_of_tensorflows_own_loops(monkeypatch: pytest.MonkeyPatch) -> None:
    from tensorflow.python.autograph.utils import ag_logging

    said: list[str] = []
    monkeypatch.setattr(ag_logging, "warning", lambda text, *given: said.append(text))
    fast, x = tf_interop.function(lambda x: tf.exp(x)), numbers(3, 4)
    same(tf.map_fn(fast, x), tf.exp(x))
    same(tf.vectorized_map(fast, x), tf.exp(x))
    (found,) = tf.data.Dataset.from_tensor_slices(x).map(fast).batch(3)
    same(found, tf.exp(x))
    same(tf.function(lambda x: fast(x) * 2)(x), tf.exp(x) * 2)
    # AutoGraph cannot convert what it finds in the bridge, and has no need to.
    assert said == []


def test_inside_of_another_function_of_the_bridge() -> None:
    inner = tf_interop.function(lambda x: tf.exp(x))
    outer = tf_interop.function(lambda x: inner(x) * 2, fallback="error")
    x = numbers(3)
    same(outer(x), tf.exp(x) * 2)
    assert on_device(outer, x)


def test_where_functions_run_eagerly() -> None:
    seen = []

    def function(x: Any) -> Any:
        seen.append(tf.executing_eagerly())
        return x * 2

    fast = tf_interop.function(function)
    tf.config.run_functions_eagerly(True)
    try:
        same(fast(numbers(3)), numbers(3) * 2)
    finally:
        tf.config.run_functions_eagerly(False)
    assert seen == [True]


def test_threads_compile_once_and_get_their_own_results() -> None:
    traces = []
    barrier = threading.Barrier(4)

    def function(x: Any) -> Any:
        traces.append(threading.get_ident())
        return tf.exp(x) @ x

    fast = tf_interop.function(function, fallback="error")

    def call(seed: int) -> Any:
        barrier.wait()
        return [fast(numbers(20, 20, seed=seed + step)) for step in range(5)]

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(call, range(4)))
    for seed, results in enumerate(found):
        for step, result in enumerate(results):
            x = numbers(20, 20, seed=seed + step)
            np.testing.assert_allclose(result, tf.exp(x) @ x, rtol=1e-4, atol=1e-4)
    assert len(traces) == 1


def test_elements_of_other_types_are_other_traces() -> None:
    plain = tf.function(lambda x, y: x * 2 + y)
    fast = tf_interop.function(plain)
    for dtype in (tf.float32, tf.int32, tf.float64, tf.int64, tf.float32):
        x, y = tf.cast(tf.range(6), dtype), tf.cast(tf.range(6, 12), dtype)
        found, expected = fast(x, y), plain(x, y)
        assert found.dtype == expected.dtype == dtype
        np.testing.assert_array_equal(found, expected)
