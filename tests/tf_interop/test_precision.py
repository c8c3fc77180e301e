"""Products of TensorFlow's functions are as exact as on the host, unless the user allows TF32."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import tensorflow as tf

from pjrt_bridge import registry, tf_interop
from pjrt_bridge.errors import OptionError
from tests.programs import note_compiled
from tests.tf_interop.helpers import numbers

EXECUTION = tf.config.experimental


def _network(x: Any, kernel: Any) -> Any:
    y = tf.nn.conv2d(x, kernel, 1, "SAME")
    return tf.matmul(tf.reshape(y, (16, -1)), tf.reshape(y, (-1, 16)))


def _arguments(dtype: Any = tf.float32) -> tuple[Any, Any]:
    return tf.cast(numbers(1, 4, 4, 3), dtype), tf.cast(numbers(3, 3, 3, 4), dtype)


def _stated(text: str) -> set[str]:
    found = set()
    for line in text.splitlines():
        if "stablehlo.dot_general" in line or "stablehlo.convolution" in line:
            named = re.search(r"HIGHEST|HIGH", line)
            found.add(named[0] if named else "DEFAULT")
    return found


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    yield
    EXECUTION.enable_tensor_float_32_execution(True)


@pytest.fixture
def texts(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The programs that are compiled for a platform that multiplies float32 in a shorter type."""
    client = registry.client("cpu")
    inexact = replace(client.platform_spec, exact_products=False)
    monkeypatch.setattr(client, "platform_spec", inexact)
    return note_compiled(monkeypatch)


@pytest.mark.parametrize(
    ("allowed", "enabled", "stated"),
    [
        (False, True, "HIGHEST"),
        (False, False, "HIGHEST"),
        (True, True, "DEFAULT"),
        (True, False, "HIGHEST"),
    ],
)
def test_what_programs_state(allowed: bool, enabled: bool, stated: str, texts: list[str]) -> None:
    EXECUTION.enable_tensor_float_32_execution(enabled)
    function = tf_interop.function(_network, placement="device", tensor_float_32=allowed)
    found, expected = function(*_arguments()), _network(*_arguments())
    tf.debugging.assert_near(found, expected, rtol=1e-4, atol=1e-4)
    assert set.union(*map(_stated, texts)) == {stated}


def test_half_precision_needs_none(texts: list[str]) -> None:
    tf_interop.function(_network, placement="device")(*_arguments(tf.bfloat16))
    assert set.union(*map(_stated, texts)) == {"DEFAULT"}


@pytest.mark.parametrize(
    ("dtype", "stated"), [(tf.float32, "HIGHEST"), (tf.float64, "HIGHEST"), (tf.half, "DEFAULT")]
)
def test_exported_programs(dtype: Any, stated: str) -> None:
    assert _stated(tf_interop.export(_network, *_arguments(dtype)).text) == {stated}


def test_an_impossible_value() -> None:
    function: Callable[..., Any] = tf_interop.function
    with pytest.raises(OptionError, match="tensor_float_32: found 1, expected a bool"):
        function(_network, tensor_float_32=1)
