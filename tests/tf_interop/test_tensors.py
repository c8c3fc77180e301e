"""Tensors as buffers and back, over the same memory where it can be."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from pjrt_bridge import dtypes as element_types
from pjrt_bridge.errors import DataError, UnsupportedDtype
from pjrt_bridge.runtime import Buffer, Client
from pjrt_bridge.runtime.dispatch.value_spec import ValueSpec
from pjrt_bridge.stablehlo.types import TensorType
from pjrt_bridge.tf_interop import compat, dtypes
from pjrt_bridge.tf_interop.adapter import ADAPTER
from pjrt_bridge.tf_interop.tensors import memory_of, tensor_over, type_of
from tests.tf_interop.helpers import address

NAMES = dtypes.NAMES


def made(name: str, shape: tuple[int, ...], seed: int = 0) -> Any:
    """A tensor that TensorFlow allocated; misses no bit pattern that is a number."""
    drawn = np.random.default_rng(seed).integers(0, 100, shape)
    return tf.identity(tf.cast(tf.constant(drawn), name))


def misaligned(count: int) -> Any:
    """A tensor over memory that does not begin at a multiple of 64 bytes."""
    store = np.zeros(count + 64, np.float32)
    begin = (-store.ctypes.data % 64) // 4 + 1
    array = store[begin : begin + count]
    array[...] = np.arange(count)
    return tf.experimental.dlpack.from_dlpack(array.__dlpack__())


def put(client: Client, tensor: Any, type: TensorType) -> Buffer:
    """A buffer of a tensor, as a program takes it."""
    return client.put_host(ADAPTER.host_array(tensor, ValueSpec.row_major(type)))


@settings(max_examples=60)
@given(
    name=st.sampled_from(NAMES),
    shape=st.lists(st.integers(0, 5), max_size=4).map(tuple),
    seed=st.integers(0, 1000),
)
def test_there_and_back(client: Client, name: str, shape: tuple[int, ...], seed: int) -> None:
    tensor = made(name, shape, seed)
    type = type_of(tensor, "it")
    with put(client, tensor, type) as buffer:
        assert (buffer.shape, buffer.dtype) == (shape, type.dtype)
        again = tensor_over(buffer)
        assert (again.dtype, tuple(again.shape)) == (tensor.dtype, shape)
        np.testing.assert_array_equal(again.numpy(), tensor.numpy())
        # TensorFlow computes with it.
        np.testing.assert_array_equal(tf.identity(again)[...].numpy(), tensor.numpy())


@pytest.mark.parametrize("name", NAMES)
def test_memory_is_shared_both_ways(client: Client, name: str) -> None:
    tensor = made(name, (33,))
    with put(client, tensor, type_of(tensor, "it")) as buffer:
        assert buffer.address == address(tensor)
        assert address(tensor_over(buffer)) == address(tensor)


def test_a_tensor_outlives_the_buffer(client: Client) -> None:
    buffer = client.put(np.arange(100, dtype=np.float32))
    tensor = tensor_over(buffer)
    buffer.delete()
    del buffer
    assert tensor.numpy().tolist() == list(range(100))


def test_misaligned_memory_is_copied_on_the_way_in(client: Client) -> None:
    tensor = misaligned(100)
    assert memory_of(tensor).address % 64
    with put(client, tensor, type_of(tensor, "it")) as buffer:
        assert buffer.address != memory_of(tensor).address
        again = tensor_over(buffer)
        assert address(again) % 64 == 0
        assert again.numpy().tolist() == list(range(100))


def test_misaligned_memory_is_never_given_to_tensorflow(client: Client) -> None:
    store = np.zeros(164, np.float32)
    begin = (-store.ctypes.data % 64) // 4 + 1
    array = store[begin : begin + 100]
    array[...] = np.arange(100)
    with client.put(array) as buffer:
        tensor = tensor_over(buffer)
        assert address(tensor) % 64 == 0
        assert tf.reduce_sum(tf.exp(-tensor)).numpy() > 1
        assert tensor.numpy().tolist() == list(range(100))


@pytest.mark.parametrize(
    "tensor",
    [
        lambda: tf.constant(["a"]),
        lambda: tf.Variable([1.0]).handle,
        lambda: tf.raw_ops.EmptyTensorList(
            element_shape=[1], max_num_elements=1, element_dtype=tf.float32
        ),
        lambda: tf.cast([1.0], tf.qint8),
    ],
    ids=["string", "resource", "variant", "qint8"],
)
def test_tensors_that_stay(client: Client, tensor: Any) -> None:
    value = tensor()
    with pytest.raises(UnsupportedDtype, match=r"the name of it: found type .* expected one of"):
        type_of(value, "the name of it")
    with pytest.raises(UnsupportedDtype):
        memory_of(value)
    if value.dtype != tf.qint8:
        assert compat.to_capsule(value) is None


def test_another_shape_or_type_is_an_error(client: Client) -> None:
    type = TensorType((3,), element_types.of("float32"))
    for tensor in (tf.ones(4), tf.ones(3, tf.int32), tf.ones([3, 1])):
        with pytest.raises(DataError, match=r"found a tensor of shape .* expected "):
            put(client, tensor, type)


def test_a_type_that_tensorflow_shares_not(client: Client) -> None:
    with (
        client.put(np.zeros(3, ml_dtypes.float8_e5m2)) as buffer,
        pytest.raises(UnsupportedDtype, match="TensorFlow shares no such tensors"),
    ):
        tensor_over(buffer)


def test_types_go_both_ways() -> None:
    for name in NAMES:
        found = dtypes.of(getattr(tf, name), "it")
        assert dtypes.name_of(found) == name
        assert found.numpy == getattr(tf, name).as_numpy_dtype
        assert dtypes.crosses(getattr(tf, name))
    for name in ("string", "resource", "variant", "qint8", "quint16"):
        assert not dtypes.crosses(getattr(tf, name))
