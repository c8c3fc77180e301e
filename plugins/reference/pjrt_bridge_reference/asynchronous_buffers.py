"""Buffers whose values the caller gives later: in pieces, or by another buffer.

They can be passed to executions at once; these wait. So every such buffer has to end some time: by
its values, by an error, or with the manager or client that it belongs to.
"""

from __future__ import annotations

import ctypes
from typing import Any

from pjrt_bridge.abi.implement import read
from pjrt_bridge.abi.implementation_objects import Status
from pjrt_bridge.abi.structs import STRUCTS
from pjrt_bridge.errors import ErrorCode
from pjrt_bridge.stablehlo import TensorType
from pjrt_bridge_reference.buffer import Buffer
from pjrt_bridge_reference.caller_arguments import address, dtype, invalid, pointers, shape, text
from pjrt_bridge_reference.client import Client
from pjrt_bridge_reference.event import Event, when_all
from pjrt_bridge_reference.layout import read_order
from pjrt_bridge_reference.memory import Memory
from pjrt_bridge_reference.slots import OBJECTS, Slots

SLOTS = Slots()

_SPEC = STRUCTS["PJRT_ShapeSpec"]


def _promised(client: Client, type: TensorType, layout: int | None, memory: Memory) -> Buffer:
    order = read_order(layout, type.shape, type.dtype.itemsize, "layout")
    block = memory.allocate(type.nbytes)
    return Buffer(client, type, order, memory, block, client.promise())


# -- in pieces -------------------------------------------------------------------------------------


class TransferManager:
    """Buffers that are filled piece by piece.

    Attributes:
        memory: where they are.
        buffers: the buffers.
        retrieved: those that the caller has; the others end with the manager.
    """

    def __init__(self, memory: Memory, buffers: list[Buffer]) -> None:
        self.memory = memory
        self.buffers = buffers
        self.retrieved: set[int] = set()

    def buffer(self, index: int) -> Buffer:
        """The buffer of an index.

        Raises:
            Status: INVALID_ARGUMENT; there is none.
        """
        if not 0 <= index < len(self.buffers):
            raise invalid(f"buffer_index is {index}; there are {len(self.buffers)} buffers")
        return self.buffers[index]


def _manager(args: Any) -> TransferManager:
    return OBJECTS.get(args.transfer_manager, TransferManager)


@SLOTS.implements("Client_CreateBuffersForAsyncHostToDevice")
def _create_buffers(args: Any) -> None:
    client = OBJECTS.get(args.client, Client)
    memory = client.memory(args.memory)
    count = args.num_shape_specs
    layouts = pointers(args.device_layouts, args.num_device_layouts, "device_layouts")
    if layouts and len(layouts) != count:
        raise invalid(f"{len(layouts)} device_layouts for {count} shape_specs")
    start = address(args.shape_specs, "shape_specs") if count else 0
    buffers: list[Buffer] = []
    try:
        for index in range(count):
            spec = read(_SPEC, start + index * ctypes.sizeof(_SPEC.ctype))
            element = dtype(spec.element_type)
            type = TensorType(shape(spec.dims, spec.num_dims, element), element)
            layout = layouts[index] if layouts else None
            buffers.append(_promised(client, type, layout, memory))
    except Status:
        for buffer in buffers:
            buffer.delete()
        raise
    args.transfer_manager = OBJECTS.add(TransferManager(memory, buffers))


@SLOTS.implements("AsyncHostToDeviceTransferManager_Destroy")
def _destroy(args: Any) -> None:
    if not args.transfer_manager:
        return
    manager = OBJECTS.remove(args.transfer_manager, TransferManager)
    gone = Status(ErrorCode.CANCELLED, "the transfer manager was destroyed before all data came")
    for index, buffer in enumerate(manager.buffers):
        buffer.ready.end(gone)
        if index not in manager.retrieved:
            buffer.delete()


@SLOTS.implements("AsyncHostToDeviceTransferManager_TransferData")
def _transfer_data(args: Any) -> None:
    buffer = _manager(args).buffer(args.buffer_index)
    offset, size = args.offset, args.transfer_size
    if offset < 0 or size < 0 or offset + size > buffer.nbytes:
        raise invalid(f"{size} bytes from byte {offset} on, of a buffer of {buffer.nbytes} bytes")
    if buffer.ready.ready:
        raise Status(ErrorCode.FAILED_PRECONDITION, "the last transfer of the buffer is done")
    data = address(args.data, "data") if size else 0
    storage = buffer.use()
    ctypes.memmove(buffer.address + offset, data, size)
    storage.release()
    if args.is_last_transfer:
        buffer.ready.end()
    args.done_with_h2d_transfer = OBJECTS.add(Event.ended())


@SLOTS.implements("AsyncHostToDeviceTransferManager_RetrieveBuffer")
def _retrieve_buffer(args: Any) -> None:
    manager = _manager(args)
    buffer = manager.buffer(args.buffer_index)
    if args.buffer_index in manager.retrieved:
        raise Status(ErrorCode.ALREADY_EXISTS, f"buffer {args.buffer_index} was retrieved before")
    manager.retrieved.add(args.buffer_index)
    args.buffer_out = OBJECTS.add(buffer)


@SLOTS.implements("AsyncHostToDeviceTransferManager_Device")
def _device(args: Any) -> None:
    args.device_out = _manager(args).memory.device_pointer


@SLOTS.implements("AsyncHostToDeviceTransferManager_BufferCount")
def _buffer_count(args: Any) -> None:
    args.buffer_count = len(_manager(args).buffers)


@SLOTS.implements("AsyncHostToDeviceTransferManager_BufferSize")
def _buffer_size(args: Any) -> None:
    args.buffer_size = _manager(args).buffer(args.buffer_index).nbytes


@SLOTS.implements("AsyncHostToDeviceTransferManager_SetBufferError")
def _set_buffer_error(args: Any) -> None:
    buffer = _manager(args).buffer(args.buffer_index)
    buffer.ready.end(_failure(args.error_code, args.error_message, args.error_message_size))


@SLOTS.implements("AsyncHostToDeviceTransferManager_AddMetadata")
def _add_metadata(args: Any) -> None:
    # Nothing here depends on what callers say about their transfers.
    _manager(args)


def _failure(code: int, message: int | None, size: int) -> Status:
    if code not in ErrorCode._value2member_map_ or code == ErrorCode.OK:
        raise invalid(f"the error code is {code}, expected 1 to 16")
    return Status(ErrorCode(code), text(message, size, "error_message"))


# -- by another buffer -----------------------------------------------------------------------------


class Fulfilment:
    """The right to say, once, what an alias buffer holds."""

    def __init__(self, alias: Buffer) -> None:
        self.alias = alias


@SLOTS.implements("Client_CreateAliasBuffer")
def _create_alias_buffer(args: Any) -> None:
    client = OBJECTS.get(args.client, Client)
    element = dtype(args.shape_element_type)
    type = TensorType(shape(args.shape_dims, args.shape_num_dims, element), element)
    alias = _promised(client, type, args.shape_layout, client.memory(args.memory))
    args.alias_buffer = OBJECTS.add(alias)
    args.fulfill_alias_buffer_cb = OBJECTS.add(Fulfilment(alias))


@SLOTS.implements("Client_FulfillAliasBuffer")
def _fulfill_alias_buffer(args: Any) -> None:
    OBJECTS.get(args.client, Client)
    alias = OBJECTS.get(args.fulfill_alias_buffer_cb, Fulfilment).alias
    if args.status_code:
        failure = _failure(args.status_code, args.error_message, args.error_message_size)
        OBJECTS.remove(args.fulfill_alias_buffer_cb, Fulfilment)
        alias.ready.end(failure)
        return
    buffer = OBJECTS.get(args.buffer, Buffer)
    buffer.use().release()
    if buffer.type != alias.type:
        raise invalid(f"the buffer is {buffer.type}, its alias {alias.type}")
    OBJECTS.remove(args.fulfill_alias_buffer_cb, Fulfilment)
    target, source = alias.storage, buffer.use()
    target.use()

    def copy() -> None:
        if buffer.ready.failure is None:
            alias.array()[...] = buffer.array()
        for storage in (source, target):
            storage.release()
        alias.ready.end(buffer.ready.failure)

    when_all([buffer.ready], copy)
