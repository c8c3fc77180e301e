"""`function`: everything that it takes, and everything that it is called with."""

from __future__ import annotations

import threading
import warnings
from collections import namedtuple
from concurrent.futures import ThreadPoolExecutor
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

Point = namedtuple("Point", ["x", "y"])


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


# -- arguments and results -------------------------------------------------------------------------


def test_keywords_in_any_order() -> None:
    fast = tf_interop.function(lambda a, b: a - b * 2, fallback="error")
    a, b = numbers(3), numbers(3, seed=1)
    for _ in range(2):
        same(fast(a=a, b=b), a - b * 2)
        same(fast(b=b, a=a), a - b * 2)
        same(fast(b=a, a=b), b - a * 2)
        same(fast(a, b=b), a - b * 2)


def test_python_values_have_traces_of_their_own() -> None:
    traces = []

    def function(x: Any, count: Any, how: str = "sum") -> Any:
        traces.append((count, how))
        return getattr(tf, f"reduce_{how}")(x) * count

    fast, x = tf_interop.function(function, fallback="error"), numbers(3)
    for _ in range(2):
        same(fast(x, 2), tf.reduce_sum(x) * 2)
        same(fast(x, 3), tf.reduce_sum(x) * 3)
        same(fast(x, 2, how="max"), tf.reduce_max(x) * 2)
        same(fast(x, True), tf.reduce_sum(x))
        same(fast(x, 1), tf.reduce_sum(x))
    assert len(traces) >= 4


def test_equal_python_values_of_other_types_have_the_traces_that_tensorflow_gives_them() -> None:
    def function(x: Any, n: Any) -> Any:
        return x * 2 if n is True else x * 3

    fast, plain, x = (
        tf_interop.function(function, fallback="error"),
        tf.function(function),
        numbers(3),
    )
    for value in (True, 1, 1.0, True):
        same(fast(x, value), plain(x, value))


def test_nested_arguments_and_results() -> None:
    def function(point: Any, many: Any) -> Any:
        first, (second, third) = many["a"], many["b"]
        return Point(point.x + first, {"y": [point.y * second, third]})

    given = (
        Point(numbers(2), numbers(2, seed=1)),
        {
            "b": (numbers(2, seed=2), numbers(2, seed=3)),
            "a": numbers(2, seed=4),
        },
    )
    fast = tf_interop.function(function, fallback="error")
    for _ in range(3):
        found = fast(*given)
        assert type(found) is Point
        same(found, function(*given))


def test_dictionaries_in_another_order() -> None:
    fast = tf_interop.function(lambda d: d["a"] - d["b"], fallback="error")
    a, b = numbers(3), numbers(3, seed=1)
    for _ in range(2):
        same(fast({"a": a, "b": b}), a - b)
        same(fast({"b": b, "a": a}), a - b)
        same(fast({"b": a, "a": b}), b - a)


def test_arrays_and_lists_are_taken_as_tensorflow_takes_them() -> None:
    fast = tf_interop.function(lambda x: tf.reduce_sum(x) * 2)
    plain = tf.function(lambda x: tf.reduce_sum(x) * 2)
    for given in (np.arange(3), np.float32([1, 2]), np.float64(3)):
        found, expected = fast(given), plain(given)
        assert found.dtype == expected.dtype
        same(found, expected)


def test_values_of_an_array_are_no_trace() -> None:
    fast = tf_interop.function(lambda x: x * 2, fallback="error")
    for value in range(3):
        same(fast(np.float32([value, 1])), tf.constant([value * 2.0, 2.0]))


def test_ragged_and_sparse_tensors() -> None:
    ragged = tf.ragged.constant([[1.0, 2.0], [3.0]])
    fast = tf_interop.function(lambda x: x * 2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", HostFallbackWarning)
        found = fast(ragged)
        assert found.to_list() == [[2.0, 4.0], [6.0]]
        other = fast(tf.ragged.constant([[1.0], [2.0, 3.0]]))
    assert other.to_list() == [[2.0], [4.0, 6.0]]


def test_no_arguments_and_no_results() -> None:
    count = tf.Variable(0)

    @tf_interop.function(fallback="error")
    def step() -> None:
        count.assign_add(1)

    for _ in range(3):
        assert step() is None
    assert count.numpy() == 3


def test_variables_made_in_the_first_trace() -> None:
    made: list[Any] = []

    @tf_interop.function(fallback="error")
    def function(x: Any) -> Any:
        if not made:
            made.append(tf.Variable(tf.ones(3)))
        return made[0].assign_add(x)

    for step in range(1, 4):
        same(function(tf.ones(3)), tf.fill([3], step + 1.0))


# -- where it is called ----------------------------------------------------------------------------


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
