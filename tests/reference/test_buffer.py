"""Data into buffers, between them, and out again."""

import ctypes
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from pjrt_bridge import dtypes
from pjrt_bridge.abi.structs import STRUCTS
from pjrt_bridge.abi.values import int64s, read_int64s
from pjrt_bridge.errors import (
    FailedPrecondition,
    InvalidArgument,
    ResourceExhausted,
    Unimplemented,
)
from pjrt_bridge.runtime import Client
from tests.reference.buffer_calls import F32, aligned, end, get, put, strided, tiled


@given(
    array=hnp.arrays(np.int32, hnp.array_shapes(min_dims=1, max_dims=4, max_side=4, min_side=0)),
    data=st.data(),
)
@settings(max_examples=60)
def test_any_strides_and_layouts(client: Client, array: Any, data: Any) -> None:
    array = array.transpose(data.draw(st.permutations(range(array.ndim))))
    steps = data.draw(st.tuples(*[st.sampled_from([1, -1, 2])] * array.ndim))
    array = array[tuple(slice(None, None, step) for step in steps)]
    order = tuple(data.draw(st.permutations(range(array.ndim))))
    other = tuple(data.draw(st.permutations(range(array.ndim))))
    made = put(client, array, device_layout=tiled(order), host_buffer_semantics=0)
    found = client.api.call("Buffer_GetMemoryLayout", buffer=made.buffer).layout.layout
    assert read_int64s(found.minor_to_major, found.minor_to_major_size) == order
    physical = array.transpose(order[::-1])
    # Without a layout the elements come in the order of the device.
    assert get(client, made.buffer, np.int32, array.shape).tolist() == physical.ravel().tolist()
    wanted = array.transpose(other[::-1]).ravel().tolist()
    assert get(client, made.buffer, np.int32, array.shape, tiled(other)).tolist() == wanted
    end(client, made.buffer, events=(made.done_with_host_buffer,))


@pytest.mark.parametrize("dtype", [dtype for dtype in dtypes.ALL if dtype.since <= 81], ids=str)
def test_every_element_type(client: Client, dtype: dtypes.DType) -> None:
    array = np.arange(6).reshape(2, 3).astype(dtype.numpy)
    buffer = client.put(array)
    assert buffer.dtype == dtype
    assert buffer.nbytes == array.nbytes
    assert np.asarray(buffer).tobytes() == array.tobytes()


def test_host_layouts_with_gaps(client: Client) -> None:
    array = np.arange(6, dtype=np.int32).reshape(2, 3)
    made = put(client, array)
    found = get(client, made.buffer, np.int32, (2, 3), strided((16, 4)))
    assert found.tolist() == [0, 1, 2, 0, 3, 4, 5]
    with pytest.raises(InvalidArgument, match="in front of the array"):
        get(client, made.buffer, np.int32, (2, 3), strided((-16, 4)))
    end(client, made.buffer, events=(made.done_with_host_buffer,))
    made = put(client, array, device_layout=strided((4, 8)))
    assert get(client, made.buffer, np.int32, (2, 3)).tolist() == array.T.ravel().tolist()
    end(client, made.buffer, events=(made.done_with_host_buffer,))


@pytest.mark.parametrize("semantics", [0, 1, 2, 3])
@pytest.mark.parametrize("where", ["host_client", "client"])
def test_semantics(semantics: int, where: str, request: pytest.FixtureRequest) -> None:
    client: Client = request.getfixturevalue(where)
    api = client.api
    array = aligned(16)
    made = put(client, array, host_buffer_semantics=semantics)
    address = api.call("Buffer_UnsafePointer", buffer=made.buffer).buffer_pointer
    shared = where == "host_client" and semantics >= 2
    assert (address == array.__array_interface__["data"][0]) == shared
    done = made.done_with_host_buffer
    if shared:
        assert not api.call("Event_IsReady", event=done).is_ready
    else:
        api.call("Event_Await", event=done)
        array[0] = 5
        assert get(client, made.buffer, np.float32, (16,))[0] == 0
    end(client, made.buffer)
    api.call("Event_Await", event=done)
    end(client, events=(done,))


def test_host_memory_that_cannot_be_shared_is_copied(host_client: Client) -> None:
    array = aligned(32)
    for part in (array[1:], array[::2]):
        made = put(host_client, part, host_buffer_semantics=2)
        found = host_client.api.call("Buffer_UnsafePointer", buffer=made.buffer).buffer_pointer
        assert found != part.__array_interface__["data"][0]
        assert host_client.api.call("Event_IsReady", event=made.done_with_host_buffer).is_ready
        end(host_client, made.buffer, events=(made.done_with_host_buffer,))


@pytest.mark.parametrize(
    ("values", "error", "why"),
    [
        ({"data": None}, InvalidArgument, "data is NULL"),
        ({"dims": None}, InvalidArgument, "dims is NULL"),
        ({"dims": int64s([-1])}, InvalidArgument, "negative"),
        ({"dims": int64s([1 << 62])}, ResourceExhausted, "bytes"),
        ({"num_dims": 65}, InvalidArgument, "65 dimensions"),
        ({"type": 0}, InvalidArgument, "PJRT_Buffer_Type 0"),
        ({"type": 23}, InvalidArgument, "PJRT_Buffer_Type 23"),
        ({"type": 99}, InvalidArgument, "PJRT_Buffer_Type 99"),
        ({"device": None}, InvalidArgument, "neither a device nor a memory"),
        ({"device": 8}, InvalidArgument, "expected a Device"),
        ({"memory": 8}, InvalidArgument, "expected a Memory"),
        ({"host_buffer_semantics": 4}, InvalidArgument, "host_buffer_semantics is 4"),
        ({"num_byte_strides": 2, "byte_strides": int64s([4, 4])}, InvalidArgument, "2 strides"),
        ({"device_layout": tiled((1, 0))}, InvalidArgument, "no order of 1 dimensions"),
        ({"device_layout": tiled((0,), tiles=1)}, Unimplemented, "1 tiles"),
        ({"device_layout": strided((8,))}, InvalidArgument, "not dense"),
        ({"device_layout": STRUCTS["PJRT_Buffer_MemoryLayout"].ctype()}, InvalidArgument, "size"),
    ],
)
def test_bad_arguments_are_errors(client: Client, values: Any, error: Any, why: str) -> None:
    with pytest.raises(error, match=why):
        put(client, np.zeros(4, np.float32), **values)


def test_a_host_buffer_that_is_too_small(client: Client) -> None:
    buffer = client.put(np.zeros(4, np.float32))
    with buffer.held() as pointer, pytest.raises(InvalidArgument, match="needs 16 bytes"):
        client.api.call("Buffer_ToHostBuffer", src=pointer, dst=bytes(15), dst_size=15)


def test_raw_reads(client: Client) -> None:
    buffer = client.put(np.arange(4, dtype=np.int32))
    target = np.zeros(2, np.int32)
    address = target.__array_interface__["data"][0]
    with buffer.held() as pointer:
        found = client.api.call(
            "Buffer_CopyRawToHost", buffer=pointer, dst=address, offset=4, transfer_size=8
        )
        client.api.call("Event_Await", event=found.event)
        end(client, events=(found.event,))
        for offset, size in [(-1, 4), (12, 8), (0, 1 << 62)]:
            with pytest.raises(InvalidArgument, match="of a buffer of 16 bytes"):
                client.api.call(
                    "Buffer_CopyRawToHost",
                    buffer=pointer,
                    dst=address,
                    offset=offset,
                    transfer_size=size,
                )
    assert target.tolist() == [1, 2]


def test_copies_between_devices_and_memories(pair: Client) -> None:
    array = np.arange(6, dtype=np.int16)
    buffer = pair.put(array)
    for where in (*pair.devices, *pair.memories):
        copy = buffer.copy_to(where)
        assert where in (copy.device, copy.memory)
        assert np.array_equal(copy, array)
        assert copy.address != buffer.address


def test_a_deleted_buffer_is_used_no_more(client: Client) -> None:
    api = client.api
    made = put(client, np.ones(4, np.float32))
    api.call("Buffer_Delete", buffer=made.buffer)
    assert api.call("Buffer_IsDeleted", buffer=made.buffer).is_deleted
    assert client.devices[0].memory_stats()["bytes_in_use"] == 0
    with pytest.raises(InvalidArgument, match="deleted or donated"):
        api.call("Buffer_ToHostBuffer", src=made.buffer, dst=bytes(16), dst_size=16)
    event = api.call("Buffer_ReadyEvent", buffer=made.buffer).event
    with pytest.raises(InvalidArgument, match="deleted or donated"):
        api.call("Event_Await", event=event)
    end(client, made.buffer, events=(event, made.done_with_host_buffer))
    with pytest.raises(InvalidArgument, match="was destroyed before"):
        api.call("Buffer_IsDeleted", buffer=made.buffer)


def test_a_view_keeps_the_memory_of_a_deleted_buffer(client: Client) -> None:
    api = client.api
    made = put(client, np.ones(4, np.float32))
    api.call("Buffer_IncreaseExternalReferenceCount", buffer=made.buffer)
    api.call("Buffer_Delete", buffer=made.buffer)
    assert client.devices[0].memory_stats()["bytes_in_use"] == 16
    api.call("Buffer_DecreaseExternalReferenceCount", buffer=made.buffer)
    assert client.devices[0].memory_stats()["bytes_in_use"] == 0
    with pytest.raises(FailedPrecondition, match="no external references"):
        api.call("Buffer_DecreaseExternalReferenceCount", buffer=made.buffer)
    end(client, made.buffer, events=(made.done_with_host_buffer,))


def test_views_of_device_memory_say_when_they_end(client: Client) -> None:
    array, ended = aligned(4), []
    array[:] = [1, 2, 3, 4]
    address = array.__array_interface__["data"][0]
    on_delete = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)(
        lambda pointer, arg: ended.append((pointer, arg))
    )
    values = dict(
        client=client.handle.pointer,
        dims=int64s([4]),
        num_dims=1,
        element_type=F32,
        device=client.devices[0].pointer,
    )
    call = client.api.call
    view = call(
        "Client_CreateViewOfDeviceBuffer",
        device_buffer_ptr=address,
        on_delete_callback=ctypes.cast(on_delete, ctypes.c_void_p).value,
        on_delete_callback_arg=77,
        **values,
    ).buffer
    assert get(client, view, np.float32, (4,)).tolist() == [1, 2, 3, 4]
    assert not ended
    end(client, view)
    assert ended == [(address, 77)]
    # Without a callback there is nobody to tell.
    end(client, call("Client_CreateViewOfDeviceBuffer", device_buffer_ptr=address, **values).buffer)
    with pytest.raises(InvalidArgument, match="not aligned to 64"):
        call("Client_CreateViewOfDeviceBuffer", device_buffer_ptr=address + 4, **values)
