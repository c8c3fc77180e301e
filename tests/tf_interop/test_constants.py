"""Sizes and axes that have to be known before a segment can be compiled."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from pjrt_bridge import tf_interop
from pjrt_bridge.errors import FallbackForbidden, HostFallbackWarning
from tests.tf_interop.helpers import divided, on_host, spec

INT = spec(dtype=tf.int32)


def needed(function: Callable[..., Any], *specs: Any) -> tuple[list[str], list[str]]:
    """Names of the arguments whose values the only part has to know, and of what cannot be."""
    found = divided(function, *specs)
    (need,) = found.needs()
    names = [found.captured.values[value].name for value in need.values]
    return names, [item.operator for item in need.fallback_reasons.values()]


@pytest.mark.parametrize(
    ("function", "names"),
    [
        (lambda x, n: tf.reshape(x, [-1, n]), ["n:0"]),
        (lambda x, n: tf.reduce_sum(x, n - 1), ["n:0"]),
        (lambda x, n: tf.tile(x, [n, 1]), ["n:0"]),
        (lambda x, n: x * tf.cast(n, tf.float32), []),
        (lambda x, n: tf.reshape(x, tf.reverse(tf.shape(x), [0])) * tf.cast(n, tf.float32), []),
        (lambda x, n: tf.reshape(x, [-1, tf.size(x) // n]), ["n:0"]),
    ],
    ids=["shape", "axis", "repeats", "a number", "sizes of an argument", "a calculation"],
)
def test_values_that_are_needed(function: Callable[..., Any], names: list[str]) -> None:
    def named(x: Any, n: Any) -> Any:
        return function(x, n)

    assert needed(named, spec(4, 6), INT) == (names, [])


@pytest.mark.parametrize(
    ("function", "variants"),
    [
        (lambda x, n: x[n], 1),
        (lambda x, n: x[:, n], 1),
        (lambda x, n: x[..., n], 1),
        (lambda x, n: x[n, tf.newaxis, :, n], 1),
        (lambda x, n: tf.slice(x, [n, 0, 1], [1, 2, 2]), 1),
        (lambda x, n: x[n : n + 1], 4),
        (lambda x, n: x[1:3, n], 4),
        (lambda x, n: tf.slice(x, [n, 0, 0], [-1, 2, 2]), 3),
    ],
    ids=["row", "column", "last", "two", "slice", "range", "both", "rest"],
)
def test_a_point_needs_no_value(function: Callable[..., Any], variants: int) -> None:
    def named(x: Any, n: Any) -> Any:
        return function(x, n) * 2

    x = tf.reshape(tf.range(60.0), [5, 4, 3])
    fast = tf_interop.function(named, fallback="error")
    tried = []
    for n in (0, 1, 2, -1):
        try:
            expected = tf.function(named)(x, tf.constant(n))
        except tf.errors.InvalidArgumentError:
            continue
        tried.append(n)
        np.testing.assert_array_equal(fast(x, tf.constant(n)), expected)
    assert len(tried) >= 3
    assert fast.compiled((x, tf.constant(0)), {}).variants == variants


def test_a_variable_may_be_a_point() -> None:
    place = tf.Variable(2)
    fast = tf_interop.function(lambda x: x[place] * 2, fallback="error")
    x = tf.reshape(tf.range(12.0), [4, 3])
    np.testing.assert_array_equal(fast(x), x[2] * 2)
    place.assign(-1)
    np.testing.assert_array_equal(fast(x), x[3] * 2)


def test_a_size_that_depends_on_data() -> None:
    def function(x: Any) -> Any:
        return tf.reshape(tf.tile(x, tf.cast(x[:1], tf.int32)), [-1]) * 2

    names, operators = needed(function, spec(300))
    assert names == []
    assert operators == ["Tile"]
    with pytest.raises(FallbackForbidden, match=r"a size or an axis in it depends on data"):
        tf_interop.function(function, fallback="error")(tf.ones(300))


def test_a_constant_is_known() -> None:
    assert needed(lambda x: tf.reshape(x, [3, 2]), spec(6)) == ([], [])
    shape = tf.constant([3, 2])
    assert needed(lambda x: tf.reshape(x, shape), spec(6)) == ([], [])


def test_a_size_in_a_variable_depends_on_data() -> None:
    variable = tf.Variable([3, 2])
    _, operators = needed(lambda x: tf.reshape(x, variable) * 2, spec(6))
    assert operators == ["Reshape"]


def test_a_segment_is_compiled_for_each_value() -> None:
    fast = tf_interop.function(lambda x, n: tf.reshape(x, [-1, n]) * 2, fallback="error")
    x = tf.range(12.0)
    for size in (3, 4, 3, 6, 4):
        found = fast(x, tf.constant(size))
        np.testing.assert_array_equal(found, np.arange(12.0).reshape(-1, size) * 2)
    (segment,) = tf_interop.explain(fast, x, tf.constant(3)).segments
    assert segment.placement == "device"


def test_a_size_from_the_host_divides_but_compiles() -> None:
    def function(x: Any, n: Any) -> Any:
        return tf.reshape(tf.exp(x), [-1, on_host(n)]) @ tf.ones([3, 20])

    plain = tf.function(function)
    fast = tf_interop.function(function)
    with pytest.warns(HostFallbackWarning, match="ParseTensor"):
        found = fast(tf.range(60.0) / 60, tf.constant(3))
    np.testing.assert_allclose(found, plain(tf.range(60.0) / 60, tf.constant(3)), rtol=1e-5)
    segments = tf_interop.explain(fast, tf.range(60.0) / 60, tf.constant(3)).segments
    assert "device" in {segment.placement for segment in segments}


def test_values_that_keep_coming_go_to_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pjrt_bridge.mixed.variants.EAGER", 3)
    fast = tf_interop.function(lambda x, n: tf.tile(x, n) * 2)
    x = tf.range(12.0)

    def call(repeats: int) -> None:
        np.testing.assert_array_equal(
            fast(x, tf.constant([repeats])), np.tile(np.arange(12.0), repeats) * 2
        )

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for repeats in (0, 1, 2):
            call(repeats)
    with pytest.warns(HostFallbackWarning, match="new ones keep coming"):
        call(3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # Said once; those that were compiled still are.
        for repeats in (1, 4, 5):
            call(repeats)
