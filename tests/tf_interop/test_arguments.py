"""Arguments and results of compiled functions: keywords, nesting, values of Python."""

from __future__ import annotations

import warnings
from collections import namedtuple
from typing import Any

import numpy as np
import tensorflow as tf

from pjrt_bridge import tf_interop
from pjrt_bridge.errors import HostFallbackWarning
from tests.tf_interop.helpers import numbers
from tests.tf_interop.test_function import same

Point = namedtuple("Point", ["x", "y"])


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
