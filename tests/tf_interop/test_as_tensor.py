"""Arrays of any kind as tensors of TensorFlow: over their memory where that is safe."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf
import torch

from pjrt_bridge.errors import DataError, UnsupportedDtype
from pjrt_bridge.runtime import Client
from pjrt_bridge.tf_interop import as_tensor, dtypes
from tests.tf_interop.helpers import address


@pytest.mark.parametrize("dtype", dtypes.NAMES)
def test_tensors_of_torch_are_shared(dtype: str) -> None:
    given = torch.arange(100).reshape(4, 25).to(getattr(torch, dtype))
    found = as_tensor(given)
    assert found.dtype.name == dtype
    assert address(found) == given.data_ptr()
    again = torch.from_dlpack(found)
    assert torch.equal(again, given)


def test_memory_that_tensorflow_would_die_of_is_copied() -> None:
    for given in (torch.arange(100.0)[1:], torch.arange(100).bfloat16()[1:], torch.ones(9) > 0):
        shifted = given[1:]
        assert shifted.data_ptr() % 64
        found = as_tensor(shifted)
        assert address(found) % 64 == 0
        assert torch.equal(torch.from_dlpack(found), shifted)
        # The kernels that abort on other memory take this.
        assert tf.size(tf.cast(found, tf.float32) + 1) == len(shifted)


def test_what_is_not_dense_is_copied() -> None:
    given = torch.arange(12.0).reshape(3, 4).T
    np.testing.assert_array_equal(as_tensor(given).numpy(), given.numpy())


def test_buffers_are_shared(client: Client) -> None:
    buffer = client.put(np.arange(64, dtype=np.float32), copy=True)
    found = as_tensor(buffer)
    assert address(found) == buffer.address
    del buffer
    np.testing.assert_array_equal(found.numpy(), np.arange(64))


def test_arrays_of_numpy_and_numbers() -> None:
    half = np.arange(5).astype(ml_dtypes.bfloat16)
    assert as_tensor(half).dtype == tf.bfloat16
    np.testing.assert_array_equal(tf.cast(as_tensor(half), tf.float32), np.arange(5))
    read_only = np.arange(5)
    read_only.flags.writeable = False
    np.testing.assert_array_equal(as_tensor(read_only), np.arange(5))
    assert as_tensor(np.zeros((0, 3), np.float32)).shape == (0, 3)
    assert float(as_tensor(3.5)) == 3.5


def test_a_tensor_is_what_it_is() -> None:
    given = tf.constant(["words", "too"])
    assert as_tensor(given) is given


def test_what_tensorflow_has_not_is_said() -> None:
    with pytest.raises(UnsupportedDtype, match="TensorFlow shares no such tensors"):
        as_tensor(np.zeros(3, ml_dtypes.float8_e4m3fn))
    with pytest.raises((DataError, UnsupportedDtype)):
        as_tensor(np.array(["a"]))
