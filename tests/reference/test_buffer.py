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
    AlreadyExists,
    Cancelled,
    DataLoss,
    FailedPrecondition,
    InvalidArgument,
    ResourceExhausted,
    Unimplemented,
)
from pjrt_bridge.runtime import Client, Plugin
from pjrt_bridge_reference.asynchronous_buffers import Fulfilment
from pjrt_bridge_reference.slots import OBJECTS

F32 = dtypes.of("float32").code


def tiled(order: tuple[int, ...], tiles: int = 0) -> Any:
    layout = STRUCTS["PJRT_Buffer_MemoryLayout"].new(type=0)
    layout.steps = int64s(order)
    layout.layout.minor_to_major = ctypes.addressof(layout.steps)
    layout.layout.minor_to_major_size = len(order)
    layout.layout.num_tiles = tiles
    return layout


def strided(strides: tuple[int, ...]) -> Any:
    layout = STRUCTS["PJRT_Buffer_MemoryLayout"].new(type=1)
    layout.steps = int64s(strides)
    struct = STRUCTS["PJRT_Buffer_MemoryLayout_Strides"].ctype.from_buffer(
        layout, STRUCTS["PJRT_Buffer_MemoryLayout"].offset("layout")
    )
    struct.byte_strides, struct.num_byte_strides = ctypes.addressof(layout.steps), len(strides)
    return layout


def put(client: Client, array: np.ndarray[Any, Any], **values: Any) -> Any:
    """PJRT_Client_BufferFromHostBuffer on an array with any strides."""
    values = {
        "client": client.handle.pointer,
        "data": array.__array_interface__["data"][0],
        "type": dtypes.from_numpy(array.dtype).code,
        "dims": int64s(array.shape),
        "num_dims": array.ndim,
        "byte_strides": int64s(array.strides),
        "num_byte_strides": array.ndim,
        "device": client.devices[0].pointer,
    } | values
    return client.api.call("Client_BufferFromHostBuffer", **values)


def get(
    client: Client, buffer: int, dtype: Any, shape: tuple[int, ...], layout: Any = None
) -> np.ndarray[Any, Any]:
    """The bytes of PJRT_Buffer_ToHostBuffer as a flat array."""
    asked = client.api.call("Buffer_ToHostBuffer", src=buffer, host_layout=layout)
    assert not asked.event
    raw = np.zeros(asked.dst_size // np.dtype(dtype).itemsize, dtype)
    copied = client.api.call(
        "Buffer_ToHostBuffer",
        src=buffer,
        host_layout=layout,
        dst=raw.__array_interface__["data"][0],
        dst_size=raw.nbytes,
    )
    client.api.call("Event_Await", event=copied.event)
    client.api.call("Event_Destroy", event=copied.event)
    return raw


def end(client: Client, *buffers: int, events: tuple[int, ...] = ()) -> None:
    for buffer in buffers:
        client.api.call("Buffer_Destroy", buffer=buffer)
    for event in events:
        client.api.call("Event_Destroy", event=event)


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


def aligned(count: int) -> np.ndarray[Any, Any]:
    raw = np.zeros(4 * count + 64, np.uint8)
    start = -raw.__array_interface__["data"][0] % 64
    return raw[start : start + 4 * count].view(np.float32)


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


def test_values_that_come_in_pieces(client: Client) -> None:
    call = client.api.call
    spec = STRUCTS["PJRT_ShapeSpec"].new(num_dims=1, element_type=F32)
    dims = int64s([4])
    spec.dims = ctypes.addressof(dims)
    specs = (STRUCTS["PJRT_ShapeSpec"].ctype * 2)(spec, spec)
    manager = call(
        "Client_CreateBuffersForAsyncHostToDevice",
        client=client.handle.pointer,
        shape_specs=specs,
        num_shape_specs=2,
        memory=client.memories[0].pointer,
    ).transfer_manager
    count = call("AsyncHostToDeviceTransferManager_BufferCount", transfer_manager=manager)
    assert count.buffer_count == 2
    prefix = "AsyncHostToDeviceTransferManager_"
    first = call(prefix + "RetrieveBuffer", transfer_manager=manager, buffer_index=0).buffer_out
    with pytest.raises(AlreadyExists):
        call(prefix + "RetrieveBuffer", transfer_manager=manager, buffer_index=0)
    with pytest.raises(InvalidArgument, match="buffer_index is 2"):
        call(prefix + "BufferSize", transfer_manager=manager, buffer_index=2)
    ready = call("Buffer_ReadyEvent", buffer=first).event
    piece = np.array([3, 4], np.float32)
    values = dict(transfer_manager=manager, buffer_index=0, transfer_size=8)
    data = piece.__array_interface__["data"][0]
    for offset in (8, 0):
        assert not call("Event_IsReady", event=ready).is_ready
        last = offset == 0
        event = call(
            prefix + "TransferData", data=data, offset=offset, is_last_transfer=last, **values
        ).done_with_h2d_transfer
        end(client, events=(event,))
    call("Event_Await", event=ready)
    assert get(client, first, np.float32, (4,)).tolist() == [3, 4, 3, 4]
    with pytest.raises(FailedPrecondition, match="last transfer"):
        call(prefix + "TransferData", data=data, offset=0, **values)
    second = call(prefix + "RetrieveBuffer", transfer_manager=manager, buffer_index=1).buffer_out
    late = call("Buffer_ReadyEvent", buffer=second).event
    call(prefix + "Destroy", transfer_manager=manager)
    with pytest.raises(Cancelled, match="before all data came"):
        call("Event_Await", event=late)
    end(client, first, second, events=(ready, late))


def test_a_promised_buffer_can_be_used_before_it_is_there(client: Client) -> None:
    call = client.api.call
    values = dict(
        client=client.handle.pointer,
        memory=client.memories[0].pointer,
        shape_dims=int64s([4]),
        shape_num_dims=1,
        shape_element_type=F32,
    )
    made = call("Client_CreateAliasBuffer", **values)
    failing = call("Client_CreateAliasBuffer", **values)
    copies = [
        call("Buffer_CopyToDevice", buffer=each.alias_buffer, dst_device=client.devices[0].pointer)
        for each in (made, failing)
    ]
    events = [call("Buffer_ReadyEvent", buffer=each.dst_buffer).event for each in copies]
    assert not call("Event_IsReady", event=events[0]).is_ready
    source = client.put(np.arange(4, dtype=np.float32))
    with pytest.raises(InvalidArgument, match="error code is 99"):
        call(
            "Client_FulfillAliasBuffer",
            client=client.handle.pointer,
            status_code=99,
            fulfill_alias_buffer_cb=failing.fulfill_alias_buffer_cb,
        )
    call(
        "Client_FulfillAliasBuffer",
        client=client.handle.pointer,
        status_code=15,
        error_message=b"no disk",
        error_message_size=7,
        fulfill_alias_buffer_cb=failing.fulfill_alias_buffer_cb,
    )
    with source.held() as pointer:
        call(
            "Client_FulfillAliasBuffer",
            client=client.handle.pointer,
            buffer=pointer,
            fulfill_alias_buffer_cb=made.fulfill_alias_buffer_cb,
        )
    call("Event_Await", event=events[0])
    assert get(client, copies[0].dst_buffer, np.float32, (4,)).tolist() == [0, 1, 2, 3]
    with pytest.raises(DataLoss, match="no disk"):
        call("Event_Await", event=events[1])
    ended = [each.alias_buffer for each in (made, failing)]
    end(client, *ended, *(each.dst_buffer for each in copies), events=tuple(events))


def test_a_client_ends_while_buffers_are_promised(plugin: Plugin) -> None:
    other = Client(plugin, {})
    call = other.api.call
    made = call(
        "Client_CreateAliasBuffer",
        client=other.handle.pointer,
        memory=other.memories[0].pointer,
        shape_element_type=F32,
    )
    copy = call(
        "Buffer_CopyToDevice", buffer=made.alias_buffer, dst_device=other.devices[0].pointer
    ).dst_buffer
    event = call("Buffer_ReadyEvent", buffer=copy).event
    other.close()
    with pytest.raises(Cancelled, match="client was destroyed"):
        call("Event_Await", event=event)
    with pytest.raises(FailedPrecondition, match="client was destroyed"):
        call("Buffer_UnsafePointer", buffer=copy)
    end(other, made.alias_buffer, copy, events=(event,))
    OBJECTS.remove(made.fulfill_alias_buffer_cb, Fulfilment)


def test_uninitialized_memory(client: Client) -> None:
    made = client.api.call(
        "Client_CreateUninitializedBuffer",
        client=client.handle.pointer,
        shape_dims=int64s([2, 3]),
        shape_num_dims=2,
        shape_element_type=F32,
        memory=client.memories[1].pointer,
    )
    assert client.api.call("Buffer_Memory", buffer=made.buffer).memory == client.memories[1].pointer
    assert client.api.call("Buffer_IsOnCpu", buffer=made.buffer).is_on_cpu
    assert get(client, made.buffer, np.float32, (2, 3)).size == 6
    end(client, made.buffer)
