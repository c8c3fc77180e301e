"""Triggers by name, and what all of them use."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from pjrt_bridge import errors

TRIGGERS: dict[str, Callable[[], None]] = {}


def trigger(function: Callable[[], None]) -> Callable[[], None]:
    """Enter a function under its name."""
    TRIGGERS[function.__name__] = function
    return function


def misaligned(*shape: int, dtype: Any = np.float32, offset: int = 1) -> np.ndarray[Any, Any]:
    """An array that begins `offset` elements behind a multiple of 64 bytes."""
    count = int(np.prod(shape))
    store = np.zeros(count + 128, dtype)
    begin = (-store.ctypes.data % 64) // store.itemsize + offset
    found = store[begin : begin + count].reshape(shape)
    found[...] = np.arange(count).reshape(shape) % 7
    assert found.ctypes.data % 64 == offset * found.itemsize
    return found


def layer(x: tf.Tensor) -> tf.Tensor:
    """Something that needs alignment: vector instructions and a product."""
    return tf.exp(x * 0.1) @ tf.transpose(x) + 1


def expected_layer(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.asarray(np.exp(x * 0.1) @ x.T + 1)


def result_or_error(call: Callable[[], Any], says: str) -> Any:
    """The result, or None where there is an error that says what is the matter."""
    try:
        return call()
    except (errors.PjrtBridgeError, tf.errors.OpError) as error:
        if says not in str(error):
            raise
        return None
