"""Segments: shapes that come, and a device that fails."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from pjrt_bridge import tf_interop
from pjrt_bridge.errors import HostFallbackWarning, PjrtError
from pjrt_bridge.mixed.segment import MAX_FAILURES
from pjrt_bridge.runtime.ownership.exit import live
from pjrt_bridge.tf_interop import segments
from tests.counting import settled
from tests.faults.segments import Faults, When
from tests.tf_interop.helpers import numbers, on_host

WHENS: tuple[When, ...] = ("start", "end")


@pytest.fixture
def faults(monkeypatch: pytest.MonkeyPatch) -> Faults:
    made = Faults()
    monkeypatch.setattr(segments, "launcher_of", made.launcher_of)
    return made


class Counting:
    """A function with state: whole, or in parts."""

    def __init__(self, *, parts: bool) -> None:
        self.total = tf.Variable(tf.zeros(30))
        self._parts = parts

    def __call__(self, x: Any) -> Any:
        self.total.assign_add(tf.exp(x))
        found = tf.tanh(self.total * x)
        return tf.exp(on_host(found)) * x if self._parts else found


def same(found: Any, expected: Any) -> None:
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("parts", [False, True], ids=["whole", "in parts"])
@pytest.mark.parametrize("when", WHENS)
def test_tensorflow_takes_over(faults: Faults, when: When, parts: bool) -> None:
    ours, theirs = Counting(parts=parts), Counting(parts=parts)
    fast, x = tf_interop.function(ours), numbers(30)

    def both(times: int = 1) -> None:
        for _ in range(times):
            same(fast(x), theirs(x))
            # An update is done once, whoever does it.
            same(ours.total, theirs.total)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", HostFallbackWarning)
        both()
    faults.failing = None, when
    with pytest.warns(HostFallbackWarning, match="it failed on the device: ") as caught:
        both(times=2)
    assert len(caught) == 1
    failures = [
        found
        for graph in tf_interop.explain(fast, x).graphs
        for found in graph.fallback_reasons
        if found.kind == "failed"
    ]
    assert failures
    assert "injected fault" in failures[0].reason


def test_failures_leave_nothing(faults: Faults) -> None:
    fast, x = tf_interop.function(lambda x: tf.exp(x) * 2), numbers(30)
    fast(x)
    gc.collect()
    before = settled()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", HostFallbackWarning)
        for when in WHENS:
            faults.failing = None, when
            fast(x)
    gc.collect()
    assert live() == before


def test_a_device_that_keeps_failing_is_left_alone(faults: Faults) -> None:
    fast, x = tf_interop.function(lambda x: tf.exp(x)), numbers(30)
    faults.failing = None, "start"
    with pytest.warns(HostFallbackWarning):
        found = [fast(x) for _ in range(MAX_FAILURES + 3)]
    for result in found:
        same(result, tf.exp(x))
    assert len(faults.starts) == MAX_FAILURES


def test_a_success_starts_the_count_again(faults: Faults) -> None:
    fast, x = tf_interop.function(lambda x: tf.exp(x)), numbers(30)

    def fail_and_succeed() -> None:
        for faults.failing in ((None, "end"), None) * MAX_FAILURES:
            fast(x)

    with pytest.warns(HostFallbackWarning):
        fail_and_succeed()
    assert len(faults.starts) == 2 * MAX_FAILURES


@pytest.mark.parametrize("when", WHENS)
def test_the_error_is_raised_where_the_host_is_forbidden(faults: Faults, when: When) -> None:
    ours, x = Counting(parts=False), numbers(30)
    fast = tf_interop.function(ours, fallback="error")
    fast(x)
    before = ours.total.numpy()
    faults.failing = None, when
    with pytest.raises(PjrtError, match="injected fault"):
        fast(x)
    np.testing.assert_array_equal(ours.total, before)
    faults.failing = None
    fast(x)
    same(ours.total, before + tf.exp(x))


def test_an_exception_of_the_host_passes_and_the_next_call_is_right() -> None:
    def function(x: Any, i: Any) -> Any:
        return tf.exp(on_host(tf.gather(tf.exp(x), i))) * 2

    def checked(x: Any, s: Any) -> Any:
        return tf.exp(x) @ x + tf.strings.to_number(s)

    x = numbers(30, 30)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", HostFallbackWarning)
        fast = tf_interop.function(checked)
        same(fast(x, tf.constant("2.5")), checked(x, tf.constant("2.5")))
        with pytest.raises(tf.errors.InvalidArgumentError, match="not a number"):
            fast(x, tf.constant("not a number"))
        same(fast(x, tf.constant("2.5")), checked(x, tf.constant("2.5")))
    gc.collect()


SHAPES: list[tuple[str, Callable[[Any], Any], Any]] = [
    ("any batch", lambda x: tf.reduce_sum(tf.exp(x), 1), tf.TensorSpec([None, 3])),
    ("any rank", lambda x: tf.exp(x) * 2, tf.TensorSpec(None)),
]


@pytest.mark.parametrize(
    ("function", "spec"), [item[1:] for item in SHAPES], ids=[item[0] for item in SHAPES]
)
def test_open_shapes_are_compiled_as_they_come(function: Any, spec: Any) -> None:
    fast = tf_interop.function(function, fallback="error", input_signature=[spec])
    for rows in (2, 5, 2, 0):
        x = numbers(rows, 3)
        same(fast(x), function(x))
    report = tf_interop.explain(fast, numbers(2, 3))
    assert [segment.placement for segment in report.segments] == ["device"]


def test_a_variable_of_open_shape_is_compiled_as_it_is() -> None:
    variable = tf.Variable(tf.ones(3), shape=tf.TensorShape(None))
    fast = tf_interop.function(lambda: tf.reduce_sum(tf.exp(variable)), fallback="error")
    for shape in ([3], [2, 2], [3]):
        variable.assign(tf.ones(shape))
        same(fast(), np.exp(1) * np.prod(shape))


def test_threads_share_the_compiled_segments() -> None:
    from concurrent.futures import ThreadPoolExecutor

    fast = tf_interop.function(lambda x: tf.exp(x) @ x, fallback="error")
    given = [numbers(20, 20, seed=seed) for seed in range(16)]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(fast, given))
    for x, result in zip(given, found, strict=True):
        same(result, tf.exp(x) @ x)


@pytest.mark.filterwarnings("ignore::pjrt_bridge.errors.HostFallbackWarning")
@pytest.mark.parametrize("sizes", [(None, None), (0, 0), (0, 3)])
def test_gathering_along_a_dimension_without_elements(sizes: tuple[int | None, ...]) -> None:
    def gather(x: Any) -> Any:
        return tf.gather(x * 2, [0, 0])

    found = tf_interop.function(gather, input_signature=[tf.TensorSpec(sizes, tf.float32)])
    for shape in ((2, 3), (0, 0)) if None in sizes else ():
        assert found(tf.ones(shape)).shape == gather(tf.ones(shape)).shape
    if sizes == (0, 0):
        assert found(tf.zeros(sizes)).shape == (2, 0)
    if 0 not in sizes or sizes == (0, 3):
        with pytest.raises(tf.errors.InvalidArgumentError):
            found(tf.zeros((0, 3)))
