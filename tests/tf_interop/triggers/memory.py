"""Host memory that is not aligned for the plugin."""

from __future__ import annotations

import ctypes

import numpy as np
import tensorflow as tf

import pjrt_bridge
from pjrt_bridge import tf_interop
from tests.tf_interop.triggers.registry import (
    expected_layer,
    layer,
    misaligned,
    trigger,
)


@trigger
def misaligned_tensor() -> None:
    """TensorFlow takes misaligned memory from DLPack, and aborts where it uses it."""
    fast = tf_interop.function(layer, fallback="error")
    for offset in (1, 4, 15):
        array = misaligned(17, 16, offset=offset)
        given = tf.experimental.dlpack.from_dlpack(array.__dlpack__())
        np.testing.assert_allclose(fast(given), expected_layer(array), rtol=1e-5)


@trigger
def misaligned_array() -> None:
    """The same memory as an array of NumPy."""
    fast = tf_interop.function(layer, fallback="error")
    array = misaligned(17, 16)
    np.testing.assert_allclose(fast(array), expected_layer(array), rtol=1e-5)


@trigger
def misaligned_buffer() -> None:
    """A buffer of the runtime that is a view of misaligned memory, and one that is not."""
    client = pjrt_bridge.client("cpu")
    fast = tf_interop.function(layer, fallback="error")
    array = misaligned(17, 16)
    given = tf.experimental.dlpack.from_dlpack(client.put(array).__dlpack__())
    np.testing.assert_allclose(fast(given), expected_layer(array), rtol=1e-5)


@trigger
def results_are_aligned() -> None:
    """TensorFlow's kernels use what device segments give, of any size and type."""
    cast = tf_interop.function(lambda x, t: (tf.cast(x, t), tf.cast(x + 1, t)))
    for dtype in (tf.float32, tf.bfloat16, tf.float64, tf.int8, tf.bool, tf.complex64):
        for size in (1, 17, 1000):
            for found in cast(tf.range(size, dtype=tf.float32), dtype):
                assert tf.concat([found, found], 0).shape == [2 * size]
                assert address(found) % 64 == 0


def address(tensor: tf.Tensor) -> int:
    """Where a tensor lies; NumPy's DLPack does not know all types."""
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    # DLManagedTensor begins with DLTensor, and that with its data pointer.
    held = tf.experimental.dlpack.to_dlpack(tensor)
    return ctypes.c_void_p.from_address(pointer(held, b"dltensor")).value or 0
