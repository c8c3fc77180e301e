"""The ways of data into buffers, between them, and out of them again.

Whatever reads or writes a buffer after its call has returned is a job of a device's worker: it
begins when the values are there, holds the memory while it works, and ends an event.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from pjrt_bridge.abi.implementation_objects import Status
from pjrt_bridge.abi.python_plugins import host_array
from pjrt_bridge.errors import ErrorCode
from pjrt_bridge.stablehlo import TensorType
from pjrt_bridge_reference.buffer import Array, Buffer
from pjrt_bridge_reference.caller_arguments import address, dtype, int64s, invalid, shape
from pjrt_bridge_reference.client import Client
from pjrt_bridge_reference.event import Event, when_all
from pjrt_bridge_reference.layout import byte_strides, read_order, read_strides
from pjrt_bridge_reference.memory import ALIGNMENT, Block, Memory
from pjrt_bridge_reference.slots import OBJECTS, Slots
from pjrt_bridge_reference.timeline import span

SLOTS = Slots()

# PJRT_HostBufferSemantics.
_DURING_CALL, _UNTIL_TRANSFER_COMPLETES, _ZERO_COPY, _MUTABLE_ZERO_COPY = range(4)

_ON_DELETE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)


def read_later(buffer: Buffer, what: str, work: Callable[[], None]) -> Event:
    """Do work that reads a buffer, once its values are there.

    Args:
        buffer: that is read; its memory stays until the work has ended.
        what: name of the work in profiles.
        work: what to do.

    Returns:
        The event of the work's end, which fails where the buffer did.

    Raises:
        Status: the buffer cannot be used.
    """
    storage, ended = buffer.use(), Event()
    worker = buffer.memory.worker

    def job() -> None:
        failure = buffer.ready.failure
        if failure is None:
            try:
                with span(worker.name, what):
                    work()
            except Exception as error:
                failure = Status(ErrorCode.INTERNAL, f"{what}: {type(error).__name__}: {error}")
        # The memory before the event: what waits for the event may ask for the memory next.
        storage.release()
        ended.end(failure)

    when_all([buffer.ready], lambda: worker.submit(job))
    return ended


# -- into a buffer ---------------------------------------------------------------------------------


@SLOTS.implements("Client_BufferFromHostBuffer")
def _buffer_from_host_buffer(args: Any) -> None:
    client = OBJECTS.get(args.client, Client)
    element = dtype(args.type)
    type = TensorType(shape(args.dims, args.num_dims, element), element)
    memory = client.place(args.device, args.memory)
    order = read_order(args.device_layout, type.shape, element.itemsize, "device_layout")
    semantics = args.host_buffer_semantics
    if not _DURING_CALL <= semantics <= _MUTABLE_ZERO_COPY:
        raise invalid(f"host_buffer_semantics is {semantics}, expected 0 to 3")
    strides = int64s(args.byte_strides, args.num_byte_strides, "byte_strides")
    if strides and len(strides) != type.rank:
        raise invalid(f"byte_strides: {len(strides)} strides for {type.rank} dimensions")
    if type.size:
        address(args.data, "data")
    dense = byte_strides(type.shape, order, element.itemsize)
    strides = strides or byte_strides(
        type.shape, tuple(reversed(range(type.rank))), element.itemsize
    )
    done = Event()
    if (
        semantics >= _ZERO_COPY
        and memory.on_host
        and strides == dense
        and type.size
        and args.data % ALIGNMENT == 0
    ):
        block = Block(args.data, writable=semantics == _MUTABLE_ZERO_COPY, on_free=done.end)
        buffer = Buffer(client, type, order, memory, block, Event.ended())
    else:
        block = memory.allocate(type.nbytes)
        buffer = Buffer(client, type, order, memory, block, Event())
        _fill(buffer, host_array(args.data, type.shape, element, strides), done, semantics)
    args.done_with_host_buffer = OBJECTS.add(done)
    args.buffer = OBJECTS.add(buffer)


def _fill(buffer: Buffer, source: Array, done: Event, semantics: int) -> None:
    storage = buffer.use()

    def job() -> None:
        buffer.array()[...] = source
        storage.release()
        buffer.ready.end()
        done.end()

    if semantics == _UNTIL_TRANSFER_COMPLETES:
        buffer.memory.worker.submit(job)
    else:
        job()


@SLOTS.implements("Client_CreateUninitializedBuffer")
def _create_uninitialized_buffer(args: Any) -> None:
    client = OBJECTS.get(args.client, Client)
    element = dtype(args.shape_element_type)
    type = TensorType(shape(args.shape_dims, args.shape_num_dims, element), element)
    memory = client.place(args.device, args.memory)
    order = read_order(args.shape_layout, type.shape, element.itemsize, "shape_layout")
    block = memory.allocate(type.nbytes)
    args.buffer = OBJECTS.add(Buffer(client, type, order, memory, block, Event.ended()))


@SLOTS.implements("Client_CreateViewOfDeviceBuffer")
def _create_view_of_device_buffer(args: Any) -> None:
    client = OBJECTS.get(args.client, Client)
    element = dtype(args.element_type)
    type = TensorType(shape(args.dims, args.num_dims, element), element)
    memory = client.place(args.device, args.memory)
    order = read_order(args.layout, type.shape, element.itemsize, "layout")
    pointer = args.device_buffer_ptr
    if type.size:
        address(pointer, "device_buffer_ptr")
    if pointer and pointer % ALIGNMENT:
        raise invalid(f"device_buffer_ptr: {pointer:#x} is not aligned to {ALIGNMENT} bytes")
    on_delete, user_arg = args.on_delete_callback, args.on_delete_callback_arg

    def free() -> None:
        if on_delete:
            _ON_DELETE(on_delete)(pointer, user_arg)

    # A view of no elements has no address, but NumPy wants one.
    block = Block(pointer or _NOWHERE, writable=True, on_free=free)
    args.buffer = OBJECTS.add(Buffer(client, type, order, memory, block, Event.ended()))


_NOTHING = ctypes.create_string_buffer(ALIGNMENT)
_NOWHERE = ctypes.addressof(_NOTHING)

# -- between buffers -------------------------------------------------------------------------------


# Into the memory that a buffer is in already the header forbids a copy; XLA's plugins make it, and
# callers have come to rely on that.
@SLOTS.implements("Buffer_CopyToDevice")
def _copy_to_device(args: Any) -> None:
    buffer = OBJECTS.get(args.buffer, Buffer)
    args.dst_buffer = _copy(buffer, buffer.client.device(args.dst_device).memories[0])


@SLOTS.implements("Buffer_CopyToMemory")
def _copy_to_memory(args: Any) -> None:
    buffer = OBJECTS.get(args.buffer, Buffer)
    args.dst_buffer = _copy(buffer, buffer.client.memory(args.dst_memory))


def _copy(buffer: Buffer, memory: Memory) -> int:
    # Before memory is taken, which would not be given back.
    buffer.use().release()
    block = memory.allocate(buffer.nbytes)
    copy = Buffer(buffer.client, buffer.type, buffer.order, memory, block, Event())
    storage, source = copy.use(), buffer.array()

    def work() -> None:
        copy.array()[...] = source

    def end(failure: Status | None) -> None:
        storage.release()
        copy.ready.end(failure)

    read_later(buffer, "copy", work).on_end(end)
    return OBJECTS.add(copy)


# -- out of a buffer -------------------------------------------------------------------------------


@SLOTS.implements("Buffer_ToHostBuffer")
def _to_host_buffer(args: Any) -> None:
    buffer = OBJECTS.get(args.src, Buffer)
    type, itemsize = buffer.type, buffer.type.dtype.itemsize
    strides = byte_strides(type.shape, buffer.order, itemsize)
    if args.host_layout:
        strides = read_strides(args.host_layout, type.shape, itemsize, "host_layout")
    reach = sum((size - 1) * step for size, step in zip(type.shape, strides, strict=True))
    needed = reach + itemsize if type.size else 0
    if not args.dst:
        args.dst_size, args.event = needed, None
        return
    if args.dst_size < needed:
        raise invalid(f"dst_size is {args.dst_size}, the array needs {needed} bytes")
    source, target = buffer.array(), host_array(args.dst, type.shape, type.dtype, strides)

    def work() -> None:
        target[...] = source

    args.event = OBJECTS.add(read_later(buffer, "to host", work))


@SLOTS.implements("Buffer_CopyRawToHost")
def _copy_raw_to_host(args: Any) -> None:
    buffer = OBJECTS.get(args.buffer, Buffer)
    offset, size = args.offset, args.transfer_size
    if offset < 0 or size < 0 or offset + size > buffer.nbytes:
        raise invalid(f"{size} bytes from byte {offset} on, of a buffer of {buffer.nbytes} bytes")
    target = address(args.dst, "dst") if size else 0

    def work() -> None:
        ctypes.memmove(target, buffer.address + offset, size)

    args.event = OBJECTS.add(read_later(buffer, "raw to host", work))


@SLOTS.implements("CopyToDeviceStream_Destroy")
def _destroy_stream(args: Any) -> None:
    # Streams are for programs that receive from the host, which this plugin does not compile.
    if args.stream:
        raise invalid(f"stream: {args.stream:#x} never was one")
