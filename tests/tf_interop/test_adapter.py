"""The dispatcher and the way through Python: the same results, and no memory copied."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import pjrt_bridge
from pjrt_bridge import tf_interop
from pjrt_bridge.errors import DataError
from pjrt_bridge.mixed.execution import CallRecord
from pjrt_bridge.mixed.launchers import BufferLauncher, DispatchLauncher, Launcher, launcher_of
from pjrt_bridge.runtime.dispatch import plans
from pjrt_bridge.tf_interop.adapter import ADAPTER
from pjrt_bridge.tf_interop.emit import emit, traced
from pjrt_bridge.tf_interop.segments import bindings_of, static_types
from tests.plugins import require_dispatcher
from tests.tf_interop.helpers import address, divided, numbers, on_host, spec

WAYS: dict[str, type[Launcher]] = {"c": DispatchLauncher, "python": BufferLauncher}


@pytest.fixture(params=list(WAYS))
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "c":
        require_dispatcher()
    monkeypatch.setattr(plans, "enabled", request.param == "c")
    found: str = request.param
    return found


def started(function: Callable[..., Any], *specs: Any) -> Launcher:
    """What starts the only part of a function, on the CPU plugin."""
    found = divided(function, *specs)
    (part,) = found.parts
    types = static_types(found.captured, part)
    assert types is not None
    made = emit(traced(found.captured, part), types, len(part.outputs), exact=False)
    executable = pjrt_bridge.client().compile(made.program)
    bindings = bindings_of(executable, made, len(part.outputs), range(len(types)))
    return launcher_of(executable, bindings, ADAPTER)


def run(path: Launcher, *tensors: Any) -> tuple[list[Any], CallRecord]:
    call = CallRecord(1)
    launch = path.launch(tensors, call)
    launch.finish()
    return launch.tensors(), call


def test_the_way_that_is_wanted(way: str) -> None:
    assert type(started(lambda x: tf.exp(x), spec(3))) is WAYS[way]


def test_tensors_in_and_out(way: str) -> None:
    path = started(lambda x, y: (x @ y, tf.reduce_sum(x) > 0), spec(2, 3), spec(3, 2))
    x, y = numbers(2, 3), numbers(3, 2)
    (product, positive), call = run(path, x, y)
    np.testing.assert_allclose(product, x @ y, rtol=1e-5)
    assert positive.dtype == tf.bool
    assert bool(positive) == bool(tf.reduce_sum(x) > 0)
    assert (call.bytes_shared, call.bytes_copied) == (48, 0)


def test_variables_are_read_as_they_are(way: str) -> None:
    variable = tf.Variable(numbers(64))
    path = started(lambda x: x * variable, spec(64))
    x = tf.ones(64)
    for step in range(12):
        (found,), call = run(path, x)
        np.testing.assert_array_equal(found, variable)
        assert call.bytes_copied == 0
        # Other memory, and the same memory with other values.
        if step % 2:
            variable.assign(numbers(64, seed=step))
        else:
            variable.assign_add(tf.ones(64))


def test_a_variable_that_was_read_does_not_change_what_is_held(way: str) -> None:
    variable = tf.Variable(tf.ones(64))
    path = started(lambda x: x * variable, spec(64))
    (first,), _ = run(path, tf.ones(64))
    variable.assign_add(tf.ones(64))
    (second,), _ = run(path, tf.ones(64))
    assert set(first.numpy()) == {1.0}
    assert set(second.numpy()) == {2.0}


def test_results_lie_where_the_plugin_wrote_them(way: str) -> None:
    path = started(lambda x: tf.exp(x), spec(64))
    launch = path.launch([tf.ones(64)], CallRecord(1))
    launch.finish()
    (one,), (two,) = launch.tensors(), launch.tensors()
    assert address(one) == address(two)
    assert address(one) % 64 == 0


@pytest.mark.parametrize(
    "given",
    [lambda: tf.ones(63), lambda: tf.ones(64, tf.int32), lambda: tf.ones([8, 8])],
    ids=["size", "type", "rank"],
)
def test_another_tensor_is_an_error_and_the_path_goes_on(
    way: str, given: Callable[[], Any]
) -> None:
    path = started(lambda x: x + 1, spec(64))
    with pytest.raises(DataError, match=r"found a tensor of shape .* expected"):
        path.launch([given()], CallRecord(1))
    assert set(run(path, tf.ones(64))[0][0].numpy()) == {2.0}


def test_misaligned_tensors_are_copied(way: str) -> None:
    store = np.zeros(128, np.float32)
    begin = (-store.ctypes.data % 64) // 4 + 1
    array = store[begin : begin + 64]
    array[...] = np.arange(64)
    tensor = tf.experimental.dlpack.from_dlpack(array.__dlpack__())
    (found,), call = run(started(lambda x: x + 1, spec(64)), tensor)
    assert found.numpy().tolist() == list(range(1, 65))
    assert (call.bytes_shared, call.bytes_copied) == (0, 256)


KINDS: dict[str, Callable[[Any], Callable[..., Any]]] = {
    "arguments": lambda _: lambda x: tf.exp(x) @ x,
    "a variable": lambda weights: lambda x: tf.tanh(x @ weights) + weights,
    "an update": lambda weights: lambda x: weights.assign_add(x @ x) * 2,
    "parts": lambda weights: lambda x: tf.exp(on_host(x @ weights)) @ x,
    "an update between parts": lambda weights: (
        lambda x: tf.exp(on_host(weights.assign_sub(x @ weights) @ x)) + weights
    ),
    "no elements": lambda _: lambda x: (tf.exp(x[:0]), x * 2),
}


@pytest.mark.filterwarnings("ignore::pjrt_bridge.errors.HostFallbackWarning")
@pytest.mark.parametrize("kind", KINDS)
def test_both_ways_give_the_same(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    require_dispatcher()
    found = []
    for enabled in (True, False):
        monkeypatch.setattr(plans, "enabled", enabled)
        weights = tf.Variable(numbers(8, 8, seed=1) / 8)
        fast = tf_interop.function(KINDS[kind](weights))
        results = [fast(numbers(8, 8, seed=seed) / 8) for seed in range(4)]
        found.append([*tf.nest.flatten(results), weights.numpy()])
        call = tf_interop.explain(fast, numbers(8, 8))
        assert call.bytes_copied == 0
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.fixture(scope="module")
def reference() -> str:
    """A plugin that does not use host memory in place."""
    pytest.importorskip("pjrt_bridge_reference")
    return "reference"


@pytest.mark.filterwarnings("ignore::pjrt_bridge.errors.HostFallbackWarning")
@pytest.mark.parametrize("kind", KINDS)
def test_a_plugin_that_shares_no_memory(kind: str, reference: str) -> None:
    ours, theirs = (tf.Variable(numbers(8, 8, seed=1) / 8) for _ in "12")
    fast = tf_interop.function(KINDS[kind](ours), plugin=reference)
    plain = tf.function(KINDS[kind](theirs))
    for seed in range(2):
        x = numbers(8, 8, seed=seed) / 8
        for one, other in zip(tf.nest.flatten(fast(x)), tf.nest.flatten(plain(x)), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)
    report = tf_interop.explain(fast, x)
    assert {graph.plugin for graph in report.graphs} == {"reference"}
    # Everything that crosses is copied there, and counted.
    assert report.bytes_shared == 0
    assert report.bytes_copied > 0


def test_kept_buffers_follow_a_variable_that_moves_often() -> None:
    require_dispatcher()
    variable = tf.Variable(tf.zeros(64))
    fast = tf_interop.function(lambda x: x + variable, fallback="error")
    held = []
    for step in itertools.islice(itertools.count(), 25):
        variable.assign(tf.fill([64], float(step)))
        # What is held keeps the memory from being used again.
        held.append(variable.read_value())
        assert set(fast(tf.ones(64)).numpy()) == {step + 1.0}
