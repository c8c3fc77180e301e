"""The border between TensorFlow's tensors and buffers.

Host memory is shared both ways where the plugin uses it in place. TensorFlow takes memory that does
not begin at a multiple of 64 bytes, and aborts the process later; it aborts at once when a tensor
of strings is exported: both are checked before.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from pjrt_bridge.errors import UnsupportedDtype
from pjrt_bridge.runtime import Buffer
from pjrt_bridge.runtime.transfers import dlpack
from pjrt_bridge.runtime.transfers.host import ALIGNMENT, HostArray, describe
from pjrt_bridge.stablehlo.types import TensorType
from pjrt_bridge.tf_interop import compat, dtypes


def type_of(tensor: Any, what: str) -> TensorType:
    """Shape and element type of an eager tensor.

    Raises:
        UnsupportedDtype: no device has its type.
    """
    return TensorType(tuple(tensor._shape_tuple()), dtypes.of(tensor.dtype, what))


def memory_of(tensor: Any) -> HostArray:
    """The memory of an eager tensor.

    Raises:
        UnsupportedDtype: a tensor that has none, of strings say.
        DataError: it is not in host memory.
    """
    dtypes.of(tensor.dtype, "a tensor")
    return describe(tensor)


def tensor_over(buffer: Buffer) -> Any:
    """A tensor over a buffer's memory, or over a copy where that cannot be; waits for the values.

    Raises:
        UnsupportedDtype: TensorFlow has no such type.
    """
    if dtypes.name_of(buffer.dtype) is None:
        raise UnsupportedDtype(f"a buffer of {buffer.dtype}: TensorFlow shares no such tensors")
    if 0 in buffer.shape or not buffer.client.shares_host_memory or buffer.address % ALIGNMENT:
        return tf.constant(buffer.to_numpy())
    return compat.from_capsule(buffer.__dlpack__())


def as_tensor(array: Any) -> Any:
    """A tensor over the memory of an array of any kind: a Buffer, a torch tensor, a NumPy array.

    The memory is shared where it begins at a multiple of 64 bytes and is dense, and copied
    elsewhere: `tf.experimental.dlpack.from_dlpack` takes other memory, too, and TensorFlow aborts
    the process when it uses it. TensorFlow takes for granted that nobody writes to what it shares.

    Raises:
        UnsupportedDtype: TensorFlow has no such type.
        DataError: no array, or not in host memory.
    """
    if isinstance(array, compat.EagerTensor):
        return array
    host = describe(array)
    name = dtypes.name_of(host.dtype)
    if name is None:
        raise UnsupportedDtype(f"an array of {host.dtype}: TensorFlow shares no such tensors")
    if host.shareable:
        memory = host.words(writable=True)
        return compat.from_capsule(dlpack.export(memory, host.dtype, versioned=False))
    # Words of bits: TensorFlow has its own classes for types that NumPy lacks.
    words = host.words().copy()
    wanted = tf.dtypes.as_dtype(name)
    if wanted.is_bool:
        return tf.constant(words.view(np.bool_))
    return tf.constant(words.view(wanted.as_numpy_dtype))
