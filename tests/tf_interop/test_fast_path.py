"""Calls that go straight into the dispatcher: which do, and that they differ in nothing."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from pjrt_bridge import tf_interop, timeline
from pjrt_bridge.errors import HostFallbackWarning, ResourceExhausted
from pjrt_bridge.mixed import records
from pjrt_bridge.mixed.launchers import DispatchLauncher
from pjrt_bridge.runtime import live_handles
from pjrt_bridge.tf_interop.compiled import CompiledFunction
from pjrt_bridge.tf_interop.fast_path import MISSED, FunctionPath
from tests.counting import settled
from tests.plugins import require_dispatcher
from tests.tf_interop.helpers import numbers

require_dispatcher()


class Ways:
    """How calls went.

    Attributes:
        short: calls that took a shortcut.
        long: calls that did not.
    """

    def __init__(self) -> None:
        self.short = 0
        self.long = 0

    def take(self) -> tuple[int, int]:
        """What was counted since the last time."""
        found = self.short, self.long
        self.short = self.long = 0
        return found


@pytest.fixture
def ways(monkeypatch: pytest.MonkeyPatch) -> Ways:
    found = Ways()
    call, run = FunctionPath.call, CompiledFunction.run

    def counted_call(self: FunctionPath, values: Any) -> Any:
        result = call(self, values)
        found.short += result is not MISSED
        return result

    def counted_run(self: CompiledFunction, arguments: Any) -> Any:
        found.long += 1
        return run(self, arguments)

    monkeypatch.setattr(FunctionPath, "call", counted_call)
    monkeypatch.setattr(CompiledFunction, "run", counted_run)
    return found


def same(found: Any, expected: Any) -> None:
    tf.nest.assert_same_structure(found, expected)
    for one, other in zip(tf.nest.flatten(found), tf.nest.flatten(expected), strict=True):
        if other is None:
            assert one is None
        else:
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def add(x: Any, y: Any) -> Any:
    return x * 2 + y


def test_all_calls_but_the_first_take_it(ways: Ways) -> None:
    fast = tf_interop.function(add, fallback="error")
    for seed in range(6):
        x, y = numbers(5, 3, seed=seed), numbers(5, 3, seed=seed + 9)
        same(fast(x, y), add(x, y))
    assert ways.take() == (5, 1)


@pytest.mark.parametrize(
    "function",
    [
        lambda x, y: (x + y, x * y),
        lambda x, y: [x * y],
        lambda x, y: {"b": x + y, "a": (x * y, [y - x])},
        lambda x, y: (x + y, None, x * y),
        lambda x, y: (x + y, x + y, x * y),
    ],
    ids=["tuple", "list", "nested", "None", "twice"],
)
def test_results_have_their_structure(ways: Ways, function: Any) -> None:
    fast = tf_interop.function(function, fallback="error")
    x, y = numbers(4), numbers(4, seed=1)
    expected = tf.function(function)(x, y)
    for _ in range(3):
        found = fast(x, y)
        assert type(found) is type(expected)
        same(found, expected)
    assert ways.take() == (2, 1)


def test_results_in_another_order_than_they_are_made(ways: Ways) -> None:
    def function(x: Any) -> Any:
        one = tf.exp(x)
        two = one + 1
        return two * 3, one, two, one

    fast, x = tf_interop.function(function, fallback="error"), numbers(4)
    for _ in range(3):
        same(fast(x), function(x))
    assert ways.take() == (2, 1)


def test_arguments_in_another_order_than_they_are_read(ways: Ways) -> None:
    def function(x: Any, y: Any, z: Any) -> Any:
        return tf.exp(z) * 3 + y * 2 - x

    fast = tf_interop.function(function, fallback="error")
    given = [numbers(4, seed=seed) for seed in range(3)]
    for _ in range(3):
        same(fast(*given), function(*given))
        given.append(given.pop(0))
    assert ways.take() == (2, 1)


def test_an_argument_that_nothing_reads(ways: Ways) -> None:
    def function(x: Any, like: Any) -> Any:
        return x * 2.0 if like.shape.rank == 1 else x * 3.0

    fast, x = tf_interop.function(function, fallback="error"), numbers(4)
    for _ in range(2):
        same(fast(x, tf.ones(2)), x * 2)
        same(fast(x, tf.ones([2, 2])), x * 3)


def test_other_shapes_and_types_go_the_long_way(ways: Ways) -> None:
    fast = tf_interop.function(add, fallback="error")
    fast(numbers(4), numbers(4))
    assert ways.take() == (0, 1)
    for shape in ((5,), (2, 4), (4,)):
        x = numbers(*shape)
        same(fast(x, x), add(x, x))
        assert ways.take() == (0, 1)
    whole = tf.range(4)
    same(fast(whole, whole), add(whole, whole))
    assert ways.take() == (0, 1)
    same(fast(whole, whole), add(whole, whole))
    assert ways.take() == (1, 0)


def test_arguments_that_are_no_tensors_go_the_long_way(ways: Ways) -> None:
    fast = tf_interop.function(add, fallback="error")
    x = numbers(4)
    for given in (x.numpy(), [1.0, 2.0, 3.0, 4.0], 2.0):
        for _ in range(2):
            same(fast(x, given), add(x, tf.convert_to_tensor(given)))
    assert ways.take() == (0, 6)


@pytest.mark.parametrize("given", [0, 1, 3])
def test_another_number_of_arguments_is_tensorflows_error(given: int) -> None:
    fast, x = tf_interop.function(add, fallback="error"), numbers(4)
    for _ in range(2):
        same(fast(x, x), add(x, x))
    with pytest.raises(TypeError):
        fast(*[x] * given)
    same(fast(x, x), add(x, x))


def test_keywords_go_the_long_way(ways: Ways) -> None:
    fast = tf_interop.function(add, fallback="error")
    x, y = numbers(4), numbers(4, seed=1)
    fast(x, y)
    same(fast(y=y, x=x), add(x, y))
    same(fast(y, y=x), add(y, x))
    assert ways.take() == (0, 3)


def test_default_arguments(ways: Ways) -> None:
    def function(x: Any, factor: float = 3.0) -> Any:
        return x * factor

    fast, x = tf_interop.function(function, fallback="error"), numbers(4)
    for _ in range(3):
        same(fast(x), x * 3)
    short, long = ways.take()
    assert short + long == 3
    same(fast(x, 2.0), x * 2)
    same(fast(x), x * 3)


def test_under_a_tape(ways: Ways) -> None:
    fast, x = tf_interop.function(add, fallback="error"), numbers(4)
    fast(x, x)
    with tf.GradientTape() as tape:
        # Nothing that is watched.
        same(fast(x, x), add(x, x))
    assert ways.take() == (0, 2)
    with tf.GradientTape() as tape:
        tape.watch(x)
        with pytest.warns(HostFallbackWarning, match="gradient tape"):
            found = fast(x, x)
    same(tape.gradient(found, x), tf.fill([4], 3.0))
    assert ways.take() == (0, 0)
    fast(x, x)
    assert ways.take() == (1, 0)


def test_variables_are_updated_in_the_call(ways: Ways) -> None:
    total, count = tf.Variable(tf.zeros(4)), tf.Variable(0)

    def function(x: Any) -> Any:
        count.assign_add(1)
        total.assign_add(x)
        return total / tf.cast(count, tf.float32)

    fast, x = tf_interop.function(function, fallback="error"), numbers(4)
    for step in range(1, 6):
        same(fast(x), x)
        same(total, x * step)
        assert count.numpy() == step
    # Between calls anybody may write.
    total.assign(tf.zeros(4))
    same(fast(x), x / 6)
    assert ways.take() == (5, 1)


def test_variables_that_have_other_shapes_now(ways: Ways) -> None:
    variable = tf.Variable(tf.ones(4), shape=tf.TensorShape(None))
    fast = tf_interop.function(lambda x: x * tf.reduce_sum(variable), fallback="error")
    for size in (4, 4, 6, 4):
        variable.assign(tf.ones(size))
        same(fast(tf.ones(3)), tf.fill([3], float(size)))
    assert ways.take() == (0, 4)


def test_who_watches_sees_every_call(ways: Ways) -> None:
    fast, x = tf_interop.function(add, fallback="error"), numbers(4)
    fast(x, x)
    ways.take()
    with records.watching() as watch:
        fast(x, x)
    assert len(watch.calls) == 1
    assert ways.take() == (0, 1)
    fast(x, x)
    assert ways.take() == (1, 0)


def test_a_timeline_has_every_call(ways: Ways) -> None:
    fast, x = tf_interop.function(add, fallback="error"), numbers(4)
    fast(x, x)
    ways.take()
    with timeline.recording() as recorded:
        same(fast(x, x), add(x, x))
    assert ways.take() == (0, 1)
    assert recorded.spans


def test_bytes_of_short_calls_are_counted() -> None:
    weights = tf.Variable(numbers(4, 4))
    fast, x = tf_interop.function(lambda x: x @ weights, fallback="error"), numbers(4, 4)
    counted = []
    for _ in range(4):
        fast(x)
        report = fast.compiled((x,), {}).record.report()
        counted.append((report.segments[0].bytes_shared, report.segments[0].bytes_copied))
    # An argument and a result; the variable stays where it is.
    assert counted[1:] == [(2 * 64, 0)] * 3


def test_a_device_that_fails(ways: Ways, monkeypatch: pytest.MonkeyPatch) -> None:
    total = tf.Variable(tf.zeros(4))

    def function(x: Any) -> Any:
        return total.assign_add(x) * 1

    fast, x = tf_interop.function(function), numbers(4)
    fast(x)
    fast(x)
    assert ways.take() == (1, 1)

    def fails(*given: Any) -> Any:
        raise ResourceExhausted(
            "injected fault", code=8, plugin="cpu", function="LoadedExecutable_Execute"
        )

    with monkeypatch.context() as patch:
        patch.setattr(DispatchLauncher, "call", fails)
        same(fast(x), x * 3)
    # The long way did it, once.
    assert ways.take() == (0, 1)
    same(total, x * 3)
    same(fast(x), x * 4)
    assert ways.take() == (1, 0)


def test_misaligned_tensors(ways: Ways) -> None:
    store = np.zeros(64, np.float32)
    begin = (-store.ctypes.data % 64) // 4 + 1
    array = store[begin : begin + 4]
    array[...] = [1, 2, 3, 4]
    fast, x = tf_interop.function(add, fallback="error"), numbers(4)
    fast(x, x)
    odd = tf.experimental.dlpack.from_dlpack(array.__dlpack__())
    same(fast(odd, x), add(tf.constant([1.0, 2.0, 3.0, 4.0]), x))


def test_calls_leave_nothing() -> None:
    fast, x = tf_interop.function(add, fallback="error"), numbers(64)
    for _ in range(3):
        fast(x, x)
    gc.collect()
    before = settled()
    for _ in range(200):
        fast(x, x)
    gc.collect()
    assert live_handles() == before


def test_functions_in_parts_have_none(ways: Ways) -> None:
    def function(s: Any) -> Any:
        return tf.exp(tf.strings.to_number(s)) @ tf.ones([2, 2])

    fast, s = tf_interop.function(function), tf.constant([["1", "2"]])
    with pytest.warns(HostFallbackWarning):
        fast(s)
    same(fast(s), function(s))
    assert ways.take() == (0, 2)


def test_a_result_that_is_an_argument(ways: Ways) -> None:
    fast, x = tf_interop.function(lambda x: (x, x + 1), fallback="error"), numbers(4)
    for _ in range(3):
        same(fast(x), (x, x + 1))


def test_shapes_that_the_signature_excludes_are_tensorflows_error() -> None:
    fast = tf_interop.function(add, fallback="error", input_signature=[tf.TensorSpec([4])] * 2)
    x = numbers(4)
    for _ in range(2):
        fast(x, x)
    with pytest.raises(TypeError):
        fast(numbers(5), x)
    same(fast(x, x), add(x, x))
