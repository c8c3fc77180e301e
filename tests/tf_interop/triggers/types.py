"""Element types that cannot cross a border."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import tensorflow as tf

from pjrt_bridge import errors, tf_interop
from tests.tf_interop.triggers.registry import (
    layer,
    trigger,
)


@trigger
def string_at_a_border() -> None:
    """Strings come out of what looks like a device's operator, and go into one."""

    def run(text: tf.Tensor, x: tf.Tensor) -> tuple[tf.Tensor, ...]:
        best = tf.argmax(layer(x), axis=-1)
        chosen = tf.gather(tf.reshape(tf.concat([text, text], 0), [-1]), best)
        return chosen, tf.where(best > 2, chosen, tf.constant("?")), tf.shape(chosen) * 2

    x = tf.random.stateless_normal([4, 4], [1, 2])
    text = tf.constant(["a", "b", "c"])
    for found, wanted in zip(tf_interop.function(run)(text, x), run(text, x), strict=True):
        np.testing.assert_array_equal(found, wanted)


@trigger
def variant_at_a_border() -> None:
    """A TensorList that the device could make, and a loop on the host that fills it."""
    heard: list[int] = []

    def run(x: tf.Tensor) -> tf.Tensor:
        rows = tf.TensorArray(tf.float32, size=3)
        y = layer(x)
        for i in tf.range(3):
            tf.py_function(lambda n: heard.append(int(n)), [i], [])
            rows = rows.write(i, y[i] * 2)
        return rows.stack() @ y

    x = tf.random.stateless_normal([3, 3], [1, 2])
    found = tf_interop.function(run)(x)
    np.testing.assert_allclose(found, 2 * layer(x) @ layer(x), rtol=1e-4)
    assert heard == [0, 1, 2]


@trigger
def variant_argument() -> None:
    """A TensorList as an argument and as a result."""
    handle = tf.raw_ops.TensorListFromTensor(tensor=tf.ones([3, 4]), element_shape=tf.constant([4]))

    def run(handle: tf.Tensor, x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        held = tf.raw_ops.TensorListStack(
            input_handle=handle, element_shape=tf.constant([4]), element_dtype=tf.float32
        )
        longer = tf.raw_ops.TensorListPushBack(input_handle=handle, tensor=x[0])
        return longer, tf.tanh(held + x)

    longer, found = tf_interop.function(run)(handle, tf.ones([3, 4]))
    np.testing.assert_allclose(found, np.tanh(np.full([3, 4], 2.0)), rtol=1e-5)
    assert int(tf.raw_ops.TensorListLength(input_handle=longer)) == 4


@trigger
def quantized_types() -> None:
    """qint8 has no counterpart in a program; the host computes with it."""

    def run(x: tf.Tensor) -> tf.Tensor:
        q = tf.quantization.quantize(tf.tanh(x), -1.0, 1.0, tf.qint8)
        return tf.quantization.dequantize(*q) * 2

    x = tf.constant([[0.5, -0.25], [0.0, 1.0]])
    np.testing.assert_allclose(tf_interop.function(run)(x), run(x), atol=1e-6)
    with pytest.raises(errors.FallbackForbidden, match="Quantize"):
        tf_interop.function(run, fallback="error")(x)


@trigger
def quantized_argument() -> None:
    """An argument of a type that cannot cross."""
    q, _, _ = tf.quantization.quantize(tf.constant([0.5, -0.5]), -1.0, 1.0, tf.qint8)

    def run(q: tf.Tensor) -> tf.Tensor:
        return tf.cast(tf.bitcast(q, tf.int8), tf.float32) * 2

    np.testing.assert_array_equal(tf_interop.function(run)(q), run(q))


@trigger
def strings_that_must_not_stay() -> None:
    """Nothing but strings, and the host is forbidden."""
    fast = tf_interop.function(tf.strings.upper, fallback="error")
    with pytest.raises(errors.FallbackForbidden, match="StringUpper"):
        fast(tf.constant("a"))
    assert tf_interop.function(tf.strings.upper)(tf.constant("a")) == tf.constant("A")


@trigger
def strings_cannot_be_exported() -> None:
    """A program of StableHLO has no strings; the error names operator and node."""
    with pytest.raises(errors.PjrtBridgeError, match=r"AsString.*said|said.*AsString"):
        tf_interop.export(
            lambda x: tf.strings.as_string(x * 2, name="said"), tf.TensorSpec([2], tf.float32)
        )
    with pytest.raises(errors.PjrtBridgeError, match="string"):
        tf_interop.export(tf.identity, tf.TensorSpec([2], tf.string))


@trigger
def numbers_that_must_be_finite() -> None:
    """check_numerics raises, also on what the device computed."""

    def run(x: tf.Tensor) -> tf.Tensor:
        return tf.debugging.check_numerics(tf.math.log(layer(x) - 1), "logarithm") * 2

    fast = tf_interop.function(run)
    np.testing.assert_allclose(fast(tf.ones([2, 2])), run(tf.ones([2, 2])), rtol=1e-5)
    with pytest.raises(tf.errors.InvalidArgumentError, match="logarithm"):
        fast(tf.zeros([2, 2]))


@trigger
def types_that_few_have() -> None:
    """float8, int4 and their like, where TensorFlow knows them."""
    rare = tf.dtypes.experimental
    for dtype, source in ((rare.float8_e4m3fn, tf.float32), (rare.int4, tf.int8)):
        x = tf.cast(tf.constant([1, 2, 3], source), dtype)
        for run in (partial(tf.cast, dtype=source), tf.identity):
            found = tf_interop.function(run)(x)
            np.testing.assert_array_equal(tf.cast(found, source), tf.cast(run(x), source))
