"""Calls that fail: wrong arguments, errors of operators, threads, closed clients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import pjrt_bridge
from pjrt_bridge import errors, tf_interop
from tests.tf_interop.triggers.registry import (
    expected_layer,
    layer,
    result_or_error,
    trigger,
)


@trigger
def operator_that_runs_nowhere() -> None:
    """Kernels that neither this TensorFlow nor XLA has."""

    def run(x: tf.Tensor) -> tf.Tensor:
        y = tf.raw_ops.CudnnRNNParamsSize(
            num_layers=1, num_units=4, input_size=4, T=tf.float32, S=tf.int32, name="lonely"
        )
        return layer(x) + tf.cast(y[0], tf.float32)

    fast = tf_interop.function(run)
    with pytest.raises((errors.PjrtBridgeError, tf.errors.OpError), match="CudnnRNNParamsSize"):
        fast(tf.ones([3, 3]))


@trigger
def shape_that_nobody_knows() -> None:
    """Not even the rank is known before the call; and not at all when it is exported."""

    def run(x: tf.Tensor) -> tf.Tensor:
        y = tf.numpy_function(lambda a: a[: int(a[0, 0]) + 1], [layer(x)], tf.float32)
        return tf.tanh(y) * 2

    fast = tf_interop.function(run)
    for value in (0.0, 1.0):
        x = tf.fill([4, 4], value)
        np.testing.assert_allclose(fast(x), run(x), rtol=1e-5)
    with pytest.raises(errors.PjrtBridgeError, match="shape"):
        tf_interop.export(layer, tf.TensorSpec([None, 4], tf.float32))
    with pytest.raises(errors.PjrtBridgeError, match="shape"):
        tf_interop.export(layer, tf.TensorSpec(None, tf.float32))


@trigger
def wrong_arguments() -> None:
    """Too many, too few, of another type than the signature says: errors, and no harm done."""
    spec = tf.TensorSpec([None, 4], tf.float32)
    fast = tf_interop.function(layer, fallback="error", input_signature=[spec])
    for positional in ((), (tf.ones([4, 4]), 1), (tf.ones([4]),), (tf.ones([4, 4], tf.int32),)):
        with pytest.raises((TypeError, ValueError, errors.PjrtBridgeError)):
            fast(*positional)
    with pytest.raises((TypeError, ValueError, errors.PjrtBridgeError)):
        fast(y=tf.ones([4, 4]))
    np.testing.assert_allclose(fast(tf.ones([4, 4])), layer(tf.ones([4, 4])), rtol=1e-5)


@trigger
def wrong_options() -> None:
    """Options that do not exist, plugins that do not exist, and what is no function."""
    with pytest.raises(errors.OptionError, match="fallback"):
        tf_interop.function(layer, fallback="perhaps")  # type: ignore[call-overload]
    with pytest.raises(errors.PluginNotFound, match="nosuch"):
        tf_interop.function(layer, plugin="nosuch")(tf.ones([2, 2]))
    with pytest.raises((TypeError, errors.PjrtBridgeError), match="int"):
        tf_interop.function(3)  # type: ignore[call-overload]


@trigger
def error_of_an_operator() -> None:
    """What raises on the host raises as it does in TensorFlow, and the next call works."""

    def run(text: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
        return layer(x) * tf.strings.to_number(text)

    fast, x = tf_interop.function(run), tf.ones([3, 3])
    for _ in range(2):
        with pytest.raises(tf.errors.InvalidArgumentError, match="two"):
            fast(tf.constant("two"), x)
        np.testing.assert_allclose(fast(tf.constant("2"), x), 2 * layer(x), rtol=1e-5)


@trigger
def error_of_python() -> None:
    """An exception of a py_function, and an assertion that does not hold."""

    def fail(x: tf.Tensor) -> tf.Tensor:
        if float(x) > 1:
            raise RuntimeError("too large for Python")
        return x

    def run(x: tf.Tensor) -> tf.Tensor:
        y = tf.py_function(fail, [tf.reduce_max(layer(x))], tf.float32)
        tf.debugging.assert_less(tf.reduce_max(x), 5.0, message="too large for TensorFlow")
        return tf.ensure_shape(y, []) * 2

    fast = tf_interop.function(run)
    with pytest.raises(tf.errors.OpError, match="too large"):
        fast(tf.fill([2, 2], 2.0))
    with pytest.raises(tf.errors.OpError, match="too large"):
        fast(tf.fill([2, 2], 9.0))


@trigger
def assertion_beside_the_device() -> None:
    """An assertion that nothing depends on is not lost."""
    state = tf.Variable(0.0)

    def run(x: tf.Tensor) -> tf.Tensor:
        tf.debugging.assert_positive(x, message="must be positive")
        state.assign_add(1.0)
        return layer(x)

    fast = tf_interop.function(run)
    fast(tf.ones([3, 3]))
    with pytest.raises(tf.errors.InvalidArgumentError, match="must be positive"):
        fast(-tf.ones([3, 3]))
    # TensorFlow does not order them: the update may have been made.
    assert float(state) in (1, 2)


@trigger
def functions_inside_a_trace() -> None:
    """Called while TensorFlow traces another function: part of that one, or a clear error."""
    fast = tf_interop.function(layer)
    outer = tf.function(lambda x: fast(x) * 2)
    x = tf.ones([3, 3])
    found = result_or_error(lambda: outer(x), "trac")
    if found is not None:
        np.testing.assert_allclose(found, 2 * layer(x), rtol=1e-5)
    np.testing.assert_allclose(fast(x), layer(x), rtol=1e-5)


@trigger
def gradients_from_outside() -> None:
    """A tape around the call: gradients, or an error; never gradients of zero."""
    x = tf.Variable(tf.ones([3, 3]))

    def gradient(function: Callable[[Any], Any]) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(function(tf.identity(x)))
        return tape.gradient(loss, x)

    found = result_or_error(lambda: (gradient(tf_interop.function(layer)),), "radient")
    if found is not None:
        np.testing.assert_allclose(found[0], gradient(layer), rtol=1e-4)


@trigger
def several_threads() -> None:
    """One function, several threads, several sizes."""
    from concurrent.futures import ThreadPoolExecutor

    fast = tf_interop.function(layer, fallback="error")

    def call(size: int) -> None:
        array = np.random.default_rng(size).standard_normal((size % 3 + 1, 4)).astype("f4")
        np.testing.assert_allclose(fast(tf.constant(array)), expected_layer(array), rtol=1e-4)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(call, range(40)))


@trigger
def closed_client() -> None:
    """The last one: a call after the client was closed."""
    fast = tf_interop.function(layer)
    fast(tf.ones([3, 3]))
    pjrt_bridge.client("cpu").close()
    found = result_or_error(lambda: fast(tf.ones([3, 3])), "closed")
    if found is not None:
        np.testing.assert_allclose(found, layer(tf.ones([3, 3])), rtol=1e-5)
