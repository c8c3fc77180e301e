"""Variables that change, end, or are elsewhere."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from pjrt_bridge import errors, tf_interop
from tests.tf_interop.triggers.registry import (
    result_or_error,
    trigger,
)


@trigger
def resource_argument() -> None:
    """A variable and the handle of a table as arguments."""
    state = tf.Variable(tf.ones([4]))

    def run(held: tf.Variable, x: tf.Tensor) -> tf.Tensor:
        held.assign_add(x)
        return tf.tanh(held * 2)

    fast = tf_interop.function(run)
    for step in range(3):
        found = fast(state, tf.ones([4]))
        np.testing.assert_allclose(found, np.tanh([2.0 * (step + 2)] * 4), rtol=1e-5)
        np.testing.assert_array_equal(state, [step + 2.0] * 4)


@trigger
def eager_update_of_an_aliased_variable() -> None:
    """The caller writes to a variable whose memory results, buffers and torch may share."""
    state = tf.Variable(tf.ones([64]))
    fast = tf_interop.function(lambda x: (state * x, tf.identity(state), state.read_value()))
    held = []
    for step in range(4):
        product, *same = fast(tf.constant(2.0))
        for one in (product / 2, *same):
            np.testing.assert_array_equal(one, np.full(64, step + 1.0))
        held.append((step, product, same))
        state.assign_add(tf.ones([64]))
    for step, product, same in held:
        for one in (product / 2, *same):
            np.testing.assert_array_equal(one, np.full(64, step + 1.0))


@trigger
def results_of_an_updated_variable_stay() -> None:
    """New values of a variable that a call gave are not those that the next one writes."""
    state = tf.Variable(tf.zeros([1000]))

    def run(x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        before = state * 1
        return before, state.assign_add(x, read_value=True) + 0

    fast = tf_interop.function(run, fallback="error")
    alias = state.value()
    given = [fast(tf.ones([1000])) for _ in range(5)]
    for step, (before, after) in enumerate(given):
        np.testing.assert_array_equal(before, np.full(1000, float(step)))
        np.testing.assert_array_equal(after, np.full(1000, step + 1.0))
    np.testing.assert_array_equal(alias, np.zeros(1000))
    np.testing.assert_array_equal(state, np.full(1000, 5.0))


@trigger
def variable_that_changes_its_shape() -> None:
    """An alias that is kept must not be used for a variable that got other memory."""
    state = tf.Variable(tf.ones([2, 2]), shape=tf.TensorShape(None))
    fast = tf_interop.function(lambda x: tf.reduce_sum(state * x))
    assert float(fast(tf.constant(2.0))) == 8
    state.assign(tf.ones([5]))
    assert float(fast(tf.constant(2.0))) == 10
    state.assign(tf.ones([2, 2]) * 3)
    assert float(fast(tf.constant(2.0))) == 24


@trigger
def variable_that_is_gone() -> None:
    """The function keeps no variable alive that its trace does not, and says what is missing."""
    state = tf.Variable(tf.ones([4]))

    def run(x: tf.Tensor) -> tf.Tensor:
        return state * x

    fast = tf_interop.function(run)
    np.testing.assert_array_equal(fast(tf.constant(2.0)), [2.0] * 4)
    state = tf.Variable(tf.ones([4]) * 5)
    # As with tf.function: the trace knows the first one, which is gone, or still holds it.
    found = result_or_error(lambda: fast(tf.constant(2.0)), "ariable")
    assert found is None or found.numpy()[0] in (2.0, 10.0)


@trigger
def uninitialized_variable() -> None:
    """A handle without a value: TensorFlow's own error, and the function still works after it."""
    handle = tf.raw_ops.VarHandleOp(dtype=tf.float32, shape=[4], shared_name="never")

    def run(x: tf.Tensor) -> tf.Tensor:
        return tf.raw_ops.ReadVariableOp(resource=handle, dtype=tf.float32) * x

    fast = tf_interop.function(run)
    with pytest.raises((errors.PjrtBridgeError, tf.errors.OpError)):
        fast(tf.constant(2.0))
    tf.raw_ops.AssignVariableOp(resource=handle, value=tf.ones([4]))
    np.testing.assert_array_equal(fast(tf.constant(2.0)), [2.0] * 4)


@trigger
def variable_on_another_device() -> None:
    """Two CPUs as far as TensorFlow knows, and a variable on the second."""
    with tf.device("CPU:1"):
        state = tf.Variable(tf.ones([4]))
    fast = tf_interop.function(lambda x: state * x, fallback="error")
    with pytest.raises(errors.PjrtBridgeError, match=r"ReadVariableOp.*CPU:1"):
        fast(tf.constant(2.0))
    with tf.device("CPU:1"):
        x = tf.constant([1.0, 2.0])
    np.testing.assert_allclose(tf_interop.function(lambda x: x * 2)(x), [2.0, 4.0])
