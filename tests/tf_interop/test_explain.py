"""explain: what it says, and that a function is as it was afterwards."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from pjrt_bridge import tf_interop
from pjrt_bridge.errors import FallbackForbidden
from tests.tf_interop.helpers import numbers, on_host

pytestmark = pytest.mark.filterwarnings("ignore::pjrt_bridge.errors.HostFallbackWarning")


def divided(x: Any) -> Any:
    return tf.exp(on_host(tf.tanh(x @ x))) @ x


def test_segments_and_reasons() -> None:
    report = tf_interop.explain(divided, numbers(8, 8))
    assert report.program == "divided"
    assert [segment.placement for segment in report.segments] == ["device", "host", "device"]
    first, host, last = report.segments
    assert first.operators == {"MatMul": 1, "Tanh": 1}
    assert set(report.on_host) == {"SerializeTensor", "ParseTensor"}
    assert {"Exp", "MatMul"} <= set(last.operators)
    for reason in host.fallback_reasons:
        assert f"(node {reason.operator}" in reason.reason
        assert reason.source is not None
    assert (host.reads, last.reads) == ((0,), (1,))


def test_bytes_and_times() -> None:
    report = tf_interop.explain(divided, numbers(8, 8))
    first, host, last = report.segments
    assert report.bytes_copied == 0
    # In x, out what the host reads; in what the host gave and x, out the result.
    assert (first.bytes_shared, last.bytes_shared) == (2 * 256, 3 * 256)
    assert host.bytes_shared == 0
    assert all(segment.run_seconds is not None for segment in report.segments)
    assert first.compile_seconds > 0
    assert host.compile_seconds == 0
    assert report.first_seconds is not None
    assert report.call_seconds is not None
    assert report.first_seconds > report.call_seconds > 0


def test_what_was_compiled_before_has_no_first_call() -> None:
    fast, x = tf_interop.function(divided), numbers(8, 8)
    fast(x)
    report = tf_interop.explain(fast, x)
    assert report.first_seconds is None
    assert len(report.segments) == 3


def test_variables_are_as_they_were() -> None:
    total, count = tf.Variable(tf.zeros(8)), tf.Variable(0)

    def function(x: Any) -> Any:
        count.assign_add(1)
        total.assign_add(on_host(x))
        return total * 2

    x = numbers(8)
    tf_interop.explain(function, x)
    assert count.numpy() == 0
    assert set(total.numpy()) == {0.0}
    fast = tf_interop.function(function)
    fast(x)
    tf_interop.explain(fast, x)
    assert count.numpy() == 1
    np.testing.assert_array_equal(total, x)


def test_optimizers_are_as_they_were() -> None:
    layers = tf.keras.layers
    model = tf.keras.Sequential([layers.Input((4,)), layers.Dense(2)])
    optimizer = tf.keras.optimizers.Adam(0.1)
    optimizer.build(model.trainable_variables)

    def step(x: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(x) ** 2)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    variables = [*model.variables, *optimizer.variables]
    before = [tf.identity(item.value).numpy() for item in variables]
    report = tf_interop.explain(step, numbers(3, 4))
    assert [segment.placement for segment in report.segments] == ["device"]
    for old, item in zip(before, variables, strict=True):
        np.testing.assert_array_equal(old, item.numpy())


def test_arguments_by_name() -> None:
    report = tf_interop.explain(lambda x, factor: x * factor, numbers(3), factor=2.0)
    assert [segment.placement for segment in report.segments] == ["device"]


def test_a_report_in_its_forms(tmp_path: Path) -> None:
    report = tf_interop.explain(divided, numbers(8, 8))
    text, found = str(report), json.loads(report.to_json())
    assert "ParseTensor" in text
    assert len(found["graphs"][0]["segments"]) == 3
    report.to_html(tmp_path / "report.html")
    assert "ParseTensor" in (tmp_path / "report.html").read_text()


def test_advice_is_tensorflows() -> None:
    report = tf_interop.explain(
        lambda x: tf.boolean_mask(tf.exp(x) @ x, tf.reduce_sum(x, 1) > 0) @ x, numbers(8, 8)
    )
    advice = " ".join(report.advice)
    assert "Where" in advice
    assert "tf." in advice
    assert "torch" not in advice


def test_what_raises_passes() -> None:
    with pytest.raises(FallbackForbidden):
        tf_interop.explain(tf_interop.function(divided, fallback="error"), numbers(8, 8))
    with pytest.raises(tf.errors.InvalidArgumentError):
        tf_interop.explain(lambda s: tf.strings.to_number(s), tf.constant("none"))
