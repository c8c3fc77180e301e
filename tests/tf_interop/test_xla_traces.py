"""Gradients of loops and branches run on the device: functions are traced again as XLA needs it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from pjrt_bridge import tf_interop
from pjrt_bridge.errors import FallbackForbidden
from pjrt_bridge.tf_interop import compat, xla_traces
from pjrt_bridge.tf_interop.capture import capture
from tests.tf_interop.helpers import numbers

X = numbers(6, 3, seed=1)
TOLD = pytest.mark.filterwarnings("ignore::pjrt_bridge.errors.HostFallbackWarning")


def by_range(x: Any) -> Any:
    h = tf.zeros([3])
    for row in tf.range(6):
        h = tf.tanh(h + x[row])
    return h


def by_rows(x: Any) -> Any:
    h = tf.zeros([3])
    for row in x:
        h = tf.tanh(h * row + row)
        if tf.reduce_sum(h) > 1:
            break
    return h


def branch(x: Any) -> Any:
    return tf.cond(tf.reduce_sum(x) > 0, lambda: tf.exp(x) * x, lambda: tf.sin(x) * x)


def branches(x: Any) -> Any:
    index = tf.cast(tf.reduce_sum(x), tf.int32) % 3
    return tf.switch_case(index, [lambda: tf.exp(x), lambda: tf.sin(x) * x, lambda: x * x])


def scanned(x: Any) -> Any:
    return tf.scan(lambda state, row: tf.tanh(state * row + row), x)


def mapped(x: Any) -> Any:
    return tf.map_fn(lambda row: tf.exp(row) * row, x)


def written(x: Any) -> Any:
    array = tf.TensorArray(tf.float32, 6)
    for row in tf.range(6):
        array = array.write(row, tf.sin(x[row]) * x[row])
    return array.stack()


def with_gradient(fn: Callable[..., Any]) -> Callable[..., Any]:
    def both(x: Any, *rest: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = fn(x, *rest)
        return y, tape.gradient(y, x)

    return both


def agree(found: Any, expected: Any) -> None:
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("fn", [by_range, by_rows, branch, branches, scanned, mapped, written])
def test_gradients_run_on_the_device(fn: Callable[..., Any]) -> None:
    both = with_gradient(fn)
    compiled = tf_interop.function(both, fallback="error")
    for x in (tf.constant(X), tf.constant(-X)):
        agree(compiled(x), tf.function(both)(x))


def test_gradients_can_be_exported() -> None:
    program = tf_interop.export(with_gradient(by_range), tf.TensorSpec([6, 3], tf.float32))
    assert [result.type.shape for result in program.signature.results] == [(3,), (6, 3)]


@TOLD
def test_what_has_to_stay_does() -> None:
    def fn(x: Any) -> Any:
        y, gradient = with_gradient(by_range)(x)
        return y, gradient, tf.strings.as_string(gradient)

    compiled = tf_interop.function(fn)
    found, expected = compiled(tf.constant(X)), tf.function(fn)(tf.constant(X))
    agree(found[:2], expected[:2])
    report = tf_interop.explain(compiled, tf.constant(X))
    assert "AsString" in report.on_host
    assert "StatelessWhile" not in report.on_host


@TOLD
def test_loops_without_end_stay_on_the_host() -> None:
    def fn(x: Any) -> Any:
        while tf.reduce_sum(x) < 100.0:
            x = x * 1.5 + 1.0
        return x

    both = with_gradient(fn)
    with pytest.raises(FallbackForbidden, match="a list without a largest size"):
        tf_interop.function(both, fallback="error")(tf.constant(X))
    compiled = tf_interop.function(both)
    agree(compiled(tf.constant(X)), tf.function(both)(tf.constant(X)))


@TOLD
def test_a_function_that_cannot_be_traced_twice() -> None:
    traces = []

    def fn(x: Any) -> Any:
        traces.append(x)
        if len(traces) > 1:
            raise RuntimeError("once is enough")
        return branch(x)

    compiled = tf_interop.function(with_gradient(fn))
    agree(compiled(tf.constant(X)), tf.function(with_gradient(branch))(tf.constant(X)))
    assert len(traces) == 2


@TOLD
def test_tensorflow_runs_what_only_xla_has() -> None:
    """More values that have to be known to compile than there are programs at once."""

    def fn(x: Any, count: Any) -> Any:
        h = tf.slice(x, [count - 1, 1], [1, 2])
        for _ in tf.range(count):
            h = tf.sin(h) * h
        return h

    both = with_gradient(fn)
    x = tf.constant(numbers(12, 3, seed=2))
    captured = capture(compat.for_xla(tf.function(both)).get_concrete_function(x, tf.constant(1)))
    assert any(xla_traces.is_rewritten(operation.made) for operation in captured.operations)
    assert xla_traces.runs_in_tensorflow(captured)
    compiled = tf_interop.function(both)
    for count in range(1, 12):
        agree(compiled(x, tf.constant(count)), tf.function(both)(x, tf.constant(count)))


@pytest.mark.parametrize("start", [(0, 0), (2, 1), (-3, 1), (5, 5)])
def test_updates_are_xlas(start: tuple[int, int]) -> None:
    operand, update = tf.constant(X), tf.constant(numbers(2, 2, seed=3))

    def fn(start: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(operand)
            y = tf.slice(operand, start, [2, 2])
        return tape.gradient(y, operand, update)

    concrete = compat.for_xla(tf.function(fn)).get_concrete_function(tf.constant([0, 0]))
    (made,) = [op for op in concrete.graph.get_operations() if xla_traces.is_rewritten(op)]
    given = [tf.zeros([6, 3]), update, tf.constant(start)]
    (found,) = xla_traces.rewritten(made, given) or []
    row, column = np.clip(start, 0, [4, 1])
    expected = np.zeros([6, 3], np.float32)
    expected[row : row + 2, column : column + 2] = update
    np.testing.assert_array_equal(found, expected)


@TOLD
def test_updates_in_bodies_keep_the_first_trace() -> None:
    def fn(x: Any) -> Any:
        h = tf.zeros([3])
        for row in tf.range(6):
            h = tf.tanh(h + tf.slice(x, [row, 0], [1, 3])[0])
        return h

    both = with_gradient(fn)
    captured = capture(compat.for_xla(tf.function(both)).get_concrete_function(tf.constant(X)))
    assert not xla_traces.runs_in_tensorflow(captured)
    compiled = tf_interop.function(both)
    agree(compiled(tf.constant(X)), tf.function(both)(tf.constant(X)))
