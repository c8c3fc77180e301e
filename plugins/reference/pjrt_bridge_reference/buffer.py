"""PJRT_Buffer: an array in a memory space, its values there or still to come."""

from __future__ import annotations

import ctypes
import threading
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pjrt_bridge.abi.implementation_objects import Keep, Status
from pjrt_bridge.abi.structs import STRUCTS
from pjrt_bridge.errors import ErrorCode
from pjrt_bridge.stablehlo import TensorType
from pjrt_bridge_reference.caller_arguments import invalid
from pjrt_bridge_reference.client import Client
from pjrt_bridge_reference.event import Event
from pjrt_bridge_reference.layout import Order, byte_strides, write_order
from pjrt_bridge_reference.memory import Block, Memory, Storage
from pjrt_bridge_reference.slots import OBJECTS, Slots

SLOTS = Slots()

Array = NDArray[Any]


class Buffer:
    """An array on a device.

    Attributes:
        client: that it belongs to.
        type: shape and element type.
        order: of the elements in memory.
        memory: where it is.
        storage: the bytes.
        ready: ends when the values are there, or will never be.
        deleted: must not be used any more, also by holders of the pointer.
        references: views of the memory that others hold; while there are any it stays where it is.
    """

    def __init__(
        self,
        client: Client,
        type: TensorType,
        order: Order,
        memory: Memory,
        block: Block,
        ready: Event,
    ) -> None:
        self.client = client
        self.type = type
        self.order = order
        self.memory = memory
        self.address = block.address
        self.storage = Storage(block)
        self.writable = block.writable
        self.ready = ready
        self.deleted = False
        self.references = 0
        self.keep = Keep()
        self._lock = threading.Lock()
        self._holds_storage = True

    @property
    def nbytes(self) -> int:
        """Bytes of the array; elements of less than a byte take a whole one."""
        return self.type.nbytes

    def array(self) -> Array:
        """The memory as an array, without a look at whether its values are there."""
        return array_at(self.address, self.type, self.order)

    def use(self) -> Storage:
        """Begin to use the memory; the caller releases what it gets.

        Raises:
            Status: the buffer was deleted or donated, or its client destroyed.
        """
        self.client.check_alive()
        with self._lock:
            if self.deleted:
                raise invalid(f"buffer {self.type} was deleted or donated")
            self.storage.use()
            return self.storage

    def delete(self) -> None:
        """Give up the memory, which is freed when work and views that use it have ended."""
        with self._lock:
            self.deleted = True
            drop = self._holds_storage and not self.references
            self._holds_storage = self._holds_storage and not drop
        if drop:
            self.storage.release()

    def donate(self) -> Block:
        """Delete the buffer and hand over its block; the caller looks at `references` before."""
        with self._lock:
            self.deleted = True
            self._holds_storage = False
            block = self.storage.give_away()
        self.storage.release()
        return block

    def destroy(self) -> None:
        """Delete the buffer, also with views: their ends cannot be reported any more."""
        self.references = 0
        self.delete()

    def add_reference(self) -> None:
        """Count a view of the memory.

        Raises:
            Status: INVALID_ARGUMENT; the buffer was deleted.
        """
        with self._lock:
            if self.deleted:
                raise invalid(f"buffer {self.type} was deleted or donated")
            self.references += 1

    def drop_reference(self) -> None:
        """Note that a view ended.

        Raises:
            Status: FAILED_PRECONDITION; there is none.
        """
        with self._lock:
            if not self.references:
                raise Status(
                    ErrorCode.FAILED_PRECONDITION, f"buffer {self.type} has no external references"
                )
            self.references -= 1
            last = self.deleted and not self.references
        if last:
            self.delete()

    @cached_property
    def dims(self) -> int:
        """Address of the dimensions."""
        return self.keep.int64s(self.type.shape)

    @cached_property
    def layout(self) -> Any:
        """The layout as C knows it."""
        layout = STRUCTS["PJRT_Buffer_MemoryLayout"].new()
        write_order(layout, self.order, self.keep)
        return layout


def array_at(address: int, type: TensorType, order: Order) -> Array:
    """An array over memory that the caller keeps."""
    # NumPy wants some memory even where there are no elements.
    memory: Any = (ctypes.c_char * max(type.nbytes, 1)).from_address(address)
    strides = byte_strides(type.shape, order, type.dtype.itemsize)
    return np.ndarray(type.shape, type.dtype.numpy, memory, strides=strides)


def _buffer(args: Any) -> Buffer:
    return OBJECTS.get(args.buffer, Buffer)


@SLOTS.implements("Buffer_Destroy")
def _destroy(args: Any) -> None:
    if args.buffer:
        OBJECTS.remove(args.buffer, Buffer).destroy()


@SLOTS.implements("Buffer_Delete")
def _delete(args: Any) -> None:
    _buffer(args).delete()


@SLOTS.implements("Buffer_IsDeleted")
def _is_deleted(args: Any) -> None:
    args.is_deleted = _buffer(args).deleted


@SLOTS.implements("Buffer_ElementType")
def _element_type(args: Any) -> None:
    args.type = _buffer(args).type.dtype.code


@SLOTS.implements("Buffer_Dimensions")
def _dimensions(args: Any) -> None:
    buffer = _buffer(args)
    args.dims, args.num_dims = buffer.dims, buffer.type.rank


@SLOTS.implements("Buffer_UnpaddedDimensions")
def _unpadded_dimensions(args: Any) -> None:
    buffer = _buffer(args)
    args.unpadded_dims, args.num_dims = buffer.dims, buffer.type.rank


@SLOTS.implements("Buffer_DynamicDimensionIndices")
def _dynamic_dimension_indices(args: Any) -> None:
    # The address of nothing is not NULL, which some callers take for an error.
    args.dynamic_dim_indices, args.num_dynamic_dims = _buffer(args).dims, 0


@SLOTS.implements("Buffer_GetMemoryLayout")
def _get_memory_layout(args: Any) -> None:
    args.layout = _buffer(args).layout


@SLOTS.implements("Buffer_OnDeviceSizeInBytes")
def _on_device_size_in_bytes(args: Any) -> None:
    args.on_device_size_in_bytes = _buffer(args).nbytes


@SLOTS.implements("Buffer_Device")
def _device(args: Any) -> None:
    args.device = _buffer(args).memory.device_pointer


@SLOTS.implements("Buffer_Memory")
def _memory(args: Any) -> None:
    args.memory = _buffer(args).memory.pointer


@SLOTS.implements("Buffer_IsOnCpu")
def _is_on_cpu(args: Any) -> None:
    args.is_on_cpu = _buffer(args).memory.on_host


@SLOTS.implements("Buffer_ReadyEvent")
def _ready_event(args: Any) -> None:
    buffer = _buffer(args)
    # A buffer that is gone has an event all the same, which says so.
    event = buffer.ready
    if buffer.deleted:
        failure = invalid(f"buffer {buffer.type} was deleted or donated")
        event = Event.ended(failure)
    args.event = OBJECTS.add(event)


def _address(args: Any) -> int:
    buffer = _buffer(args)
    buffer.use().release()
    return buffer.address


@SLOTS.implements("Buffer_UnsafePointer")
def _unsafe_pointer(args: Any) -> None:
    args.buffer_pointer = _address(args)


@SLOTS.implements("Buffer_OpaqueDeviceMemoryDataPointer")
def _opaque_device_memory_data_pointer(args: Any) -> None:
    args.device_memory_ptr = _address(args)


@SLOTS.implements("Buffer_IncreaseExternalReferenceCount")
def _increase_external_reference_count(args: Any) -> None:
    _buffer(args).add_reference()


@SLOTS.implements("Buffer_DecreaseExternalReferenceCount")
def _decrease_external_reference_count(args: Any) -> None:
    _buffer(args).drop_reference()
