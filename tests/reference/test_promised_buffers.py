"""Buffers whose values come in pieces, or are promised; memory that nobody has set."""

import ctypes

import numpy as np
import pytest

from pjrt_bridge.abi.structs import STRUCTS
from pjrt_bridge.abi.values import int64s
from pjrt_bridge.errors import (
    AlreadyExists,
    Cancelled,
    DataLoss,
    FailedPrecondition,
    InvalidArgument,
)
from pjrt_bridge.runtime import Client, Plugin
from pjrt_bridge_reference.asynchronous_buffers import Fulfilment
from pjrt_bridge_reference.slots import OBJECTS
from tests.reference.buffer_calls import F32, end, get


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
