"""`function`: everything that it takes, and everything that it is called with."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from pjrt_bridge import tf_interop
from pjrt_bridge.errors import (
    FallbackForbidden,
    HostFallbackWarning,
    NotExportable,
    OptionError,
    PluginNotFound,
)
from tests.tf_interop.helpers import numbers


def same(found: Any, expected: Any) -> None:
    tf.nest.assert_same_structure(found, expected)
    for one, other in zip(tf.nest.flatten(found), tf.nest.flatten(expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def on_device(fast: tf_interop.Function, *args: Any, **kwargs: Any) -> bool:
    """Whether a call is one device segment."""
    segments = tf_interop.explain(fast, *args, **kwargs).segments
    return [segment.placement for segment in segments] == ["device"]


# -- what it takes ---------------------------------------------------------------------------------


def test_a_decorator() -> None:
    @tf_interop.function
    def double(x: Any) -> Any:
        """Twice as much."""
        return x * 2

    same(double(numbers(3)), numbers(3) * 2)
    assert (double.__name__, double.__doc__) == ("double", "Twice as much.")


def test_a_decorator_with_arguments() -> None:
    @tf_interop.function(fallback="error", input_signature=[tf.TensorSpec([None])])
    def double(x: Any) -> Any:
        return x * 2

    for size in (3, 5):
        same(double(numbers(size)), numbers(size) * 2)
    with pytest.raises(TypeError):
        double(numbers(2, 2))


def test_a_tf_function() -> None:
    traces = []

    @tf.function
    def double(x: Any) -> Any:
        traces.append(x)
        return x * 2

    fast = tf_interop.function(double, fallback="error")
    for _ in range(3):
        same(fast(numbers(3)), numbers(3) * 2)
    assert len(traces) == 1


def test_a_concrete_function() -> None:
    concrete = tf.function(lambda x, y: (x @ y, x)).get_concrete_function(
        tf.TensorSpec([2, 3]), tf.TensorSpec([3, 2])
    )
    fast = tf_interop.function(concrete, fallback="error")
    x, y = numbers(2, 3), numbers(3, 2)
    same(fast(x, y), (x @ y, x))


def test_a_keras_model() -> None:
    layers = tf.keras.layers
    model = tf.keras.Sequential([layers.Input((4,)), layers.Dense(3, "relu"), layers.Dense(2)])
    fast, x = tf_interop.function(model, fallback="error"), numbers(5, 4)
    same(fast(x), model(x))
    model.layers[0].kernel.assign(model.layers[0].kernel * 2)
    same(fast(x), model(x))
    assert on_device(fast, x)


def test_a_layer_that_differs_in_training() -> None:
    layer = tf.keras.layers.BatchNormalization()
    layer.build((5, 4))
    fast, x = tf_interop.function(layer, fallback="error"), numbers(5, 4)
    same(fast(x, training=False), layer(x, training=False))
    before = layer.moving_mean.numpy()
    fast(x, training=True)
    np.testing.assert_allclose(
        layer.moving_mean, before * 0.99 + tf.reduce_mean(x, 0) * 0.01, rtol=1e-4, atol=1e-6
    )


def test_a_signature_of_a_saved_model(tmp_path: Path) -> None:
    module = tf.Module()
    module.weights = tf.Variable(numbers(3, 2))
    module.run = tf.function(
        lambda x: {"found": x @ module.weights},
        input_signature=[tf.TensorSpec([None, 3], name="x")],
    )
    tf.saved_model.save(module, str(tmp_path), signatures={"serving_default": module.run})
    # TensorFlow's signatures do not keep the variables of their model.
    loaded = tf.saved_model.load(str(tmp_path))
    fast = tf_interop.function(loaded.signatures["serving_default"], fallback="error")
    for rows in (2, 4):
        x = numbers(rows, 3)
        same(fast(x=x), {"found": x @ module.weights})


class Scaler:
    """A class whose method is compiled."""

    def __init__(self, factor: float) -> None:
        self.factor = tf.Variable(factor)

    @tf_interop.function(fallback="error")
    def scale(self, x: Any, *, add: float = 0.0) -> Any:
        return x * self.factor + add


def test_methods() -> None:
    one, two, x = Scaler(2.0), Scaler(3.0), numbers(3)
    for _ in range(2):
        same(one.scale(x), x * 2)
        same(two.scale(x), x * 3)
    same(one.scale(x, add=1.0), x * 2 + 1)
    assert isinstance(Scaler.scale, tf_interop.Function)


def test_a_function_of_a_function() -> None:
    fast = tf_interop.function(tf_interop.function(lambda x: x * 2), fallback="error")
    same(fast(numbers(3)), numbers(3) * 2)


# -- bad input -------------------------------------------------------------------------------------


def test_impossible_values() -> None:
    with pytest.raises(OptionError, match="found 'sometimes', expected 'host' or 'error'"):
        tf_interop.function(abs, fallback="sometimes")
    with pytest.raises(OptionError, match="found 'host', expected 'auto' or 'device'"):
        tf_interop.function(abs, placement="host")
    with pytest.raises(OptionError, match="found a int, expected something to call"):
        tf_interop.function(3)
    with pytest.raises(PluginNotFound):
        tf_interop.function(abs, plugin="no_such_plugin")


def test_a_forbidden_host_names_all_that_is_there() -> None:
    def function(s: Any) -> Any:
        return tf.strings.length(tf.strings.upper(s))

    fast = tf_interop.function(function, fallback="error")
    with pytest.raises(FallbackForbidden, match=r"'function' cannot run on plugin .*StringUpper"):
        fast(tf.constant("a"))


def test_what_the_host_does_is_said_once() -> None:
    fast = tf_interop.function(lambda s, x: (tf.strings.upper(s), tf.exp(x)))
    with pytest.warns(HostFallbackWarning, match="StringUpper") as caught:
        fast(tf.constant("a"), numbers(20))
    assert len(caught) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        same(fast(tf.constant("a"), numbers(20))[1], tf.exp(numbers(20)))


def test_what_tensorflow_is_faster_at_stays_with_it_unless_the_device_is_asked_for() -> None:
    def resized(x: Any) -> Any:
        return tf.tanh(tf.image.resize(tf.tanh(x), [64, 64]))

    x = numbers(1, 32, 32, 3)
    with warnings.catch_warnings():
        warnings.simplefilter("error", HostFallbackWarning)
        fast = tf_interop.function(resized)
        same(fast(x), resized(x))
    report = tf_interop.explain(fast, x)
    assert [segment.placement for segment in report.segments] == ["device", "host", "device"]
    ((reason,),) = [item.fallback_reasons for item in report.segments if item.placement == "host"]
    assert (reason.operator, reason.kind) == ("ResizeBilinear", "slow")
    assert on_device(tf_interop.function(resized, placement="device"), x)
    assert on_device(tf_interop.function(resized, fallback="error"), x)
    small = tf_interop.function(lambda x: tf.image.resize(tf.tanh(x), [8, 8]))
    assert on_device(small, x)


def test_deferred_captures() -> None:
    value = tf.constant(1.0)

    def function(x: Any) -> Any:
        graph = tf.compat.v1.get_default_graph()
        return x + graph.capture_call_time_value(lambda: value, tf.TensorSpec([], tf.float32))

    with pytest.raises(NotExportable, match="deferred captures"):
        tf_interop.function(function)(tf.constant(1.0))
