"""Buffer: an array on a device."""

from __future__ import annotations

import ctypes
from collections.abc import Generator
from enum import Enum
from operator import gt
from typing import TYPE_CHECKING, Any

import numpy as np

from pjrt_bridge import timeline
from pjrt_bridge.abi.values import read_int64s
from pjrt_bridge.dtypes import DType
from pjrt_bridge.errors import BufferUnavailable, Closed, DataError, PluginIncompatible
from pjrt_bridge.runtime.objects.device import Device, Memory
from pjrt_bridge.runtime.objects.event import Event
from pjrt_bridge.runtime.ownership.handles import Finalizer, Handle, Pin, release_soon
from pjrt_bridge.runtime.transfers import device_dlpack, dlpack
from pjrt_bridge.runtime.transfers.host import NOWHERE
from pjrt_bridge.runtime.transfers.layout import Layout
from pjrt_bridge.stablehlo.types import TensorType

if TYPE_CHECKING:
    from pjrt_bridge.runtime.objects.client import Client


class BufferState(Enum):
    """What can be done with a buffer."""

    LIVE = "live"
    DONATED = "donated"
    DELETED = "deleted"


class Buffer:
    """An immutable array on a device.

    A buffer may not hold its values yet: an execution goes on while its results are passed around.
    Reading waits. Buffers are made by `Client.put` and by executions.

    Attributes:
        client: the client that the buffer belongs to.
        type: shape and element type; of a result with a bounded dimension, the bound.
        device: where it lives.
        custom_layout: minor-to-major order where it is not the plugin's default for the type, else
            None.
        dynamic: some dimensions are bounds; `true_shape` tells.
        handle: the plugin's object.
    """

    __slots__ = (
        "__weakref__",
        "_donated_to",
        "_layout",
        "_ready",
        "client",
        "custom_layout",
        "device",
        "dynamic",
        "handle",
        "type",
    )

    def __init__(
        self,
        client: Client,
        pointer: int | None,
        type: TensorType,
        device: Device,
        layout: Layout | None = None,
        custom_layout: tuple[int, ...] | None = None,
        dynamic: bool = False,
        *,
        pinned: bool = False,
    ) -> None:
        self.client = client
        self.type = type
        self.device = device
        self.custom_layout = custom_layout
        self.dynamic = dynamic
        self._layout = layout
        self._ready = False
        self._donated_to: str | None = None
        self.handle: Handle = Handle(
            client.api, "Buffer", pointer, client.handle, argument="buffer", pinned=pinned
        )

    @property
    def shape(self) -> tuple[int, ...]:
        """Elements per dimension."""
        return self.type.shape

    @property
    def dtype(self) -> DType:
        """Element type."""
        return self.type.dtype

    @property
    def state(self) -> BufferState:
        """Whether the buffer is there, was donated to an execution, or was deleted."""
        if self._donated_to is not None:
            return BufferState.DONATED
        return BufferState.DELETED if self.handle.released else BufferState.LIVE

    @property
    def memory(self) -> Memory | None:
        """The memory space that the buffer lives in; None where the plugin does not tell."""
        with self.held() as pointer:
            if not self.client.api.has("Buffer_Memory"):
                return None
            found = self.client.api.call("Buffer_Memory", buffer=pointer).memory
        return self.client.memory_of(found)

    @property
    def layout(self) -> Layout:
        """Order of the elements in device memory."""
        if self._layout is None:
            with self.held() as pointer:
                self._layout = Layout.of_buffer(self.client.api, pointer, self.type.rank)
        return self._layout

    @property
    def nbytes(self) -> int:
        """Bytes that the buffer takes on the device."""
        with self.held() as pointer:
            found = self.client.api.call("Buffer_OnDeviceSizeInBytes", buffer=pointer)
        return int(found.on_device_size_in_bytes)

    @property
    def address(self) -> int:
        """Device address of the first element, once the values are there; 0 for no elements.

        The address is good as long as the buffer is; `__dlpack__` keeps it good for longer.

        Raises:
            PjrtError: the computation of the values failed, or the plugin does not tell.
            PluginIncompatible: the plugin gave NULL for elements.
        """
        with self.held() as pointer:
            self._wait(pointer)
            found = self.client.api.call(
                "Buffer_OpaqueDeviceMemoryDataPointer", buffer=pointer
            ).device_memory_ptr
        if not (found or 0 in self.shape):
            raise PluginIncompatible(
                f"plugin {self.client.plugin.name!r}: Buffer_OpaqueDeviceMemoryDataPointer gave "
                f"NULL for {self.type}"
            )
        return found or 0

    def held(self) -> _Held:
        """Keep the plugin's object during a `with` block, and give its pointer.

        Raises:
            BufferUnavailable: the buffer was donated or deleted, or its client was closed.
        """
        return _Held(self)

    def unavailable(self) -> BufferUnavailable:
        """The error that says why this buffer cannot be used."""
        what = f"buffer {self.type} on device {self.device.id}"
        if self._donated_to is not None:
            return BufferUnavailable(
                f"{what} was donated to {self._donated_to}; keep a copy, or execute with donate=()"
            )
        return BufferUnavailable(
            f"{what} was deleted{' with its client' if self.client.closed else ''}"
        )

    def mark_donated(self, to: str) -> None:
        """Record that an execution consumed the buffer."""
        self._donated_to = to
        self.handle.release()

    def ready(self) -> bool:
        """Whether the values are there (or the computation of them failed)."""
        event = self.ready_event()
        try:
            return event.ready
        finally:
            event.close()

    def ready_event(self) -> Event:
        """The event of the values being there: `wait()` it, or `await` it inside asyncio."""
        with self.held() as pointer:
            event = self.client.api.call("Buffer_ReadyEvent", buffer=pointer).event
            return Event(self.client.api, event, self.client.handle)

    def block_until_ready(self) -> Buffer:
        """Wait until the values are there; other Python threads go on.

        Raises:
            PjrtError: the computation of the values failed.
        """
        with self.held() as pointer:
            self._wait(pointer)
        return self

    def _wait(self, pointer: int) -> None:
        if not self._ready:
            ready = self.client.api.call("Buffer_ReadyEvent", buffer=pointer)
            self.handle.wait(ready.event)
            self.mark_ready()

    def mark_ready(self) -> None:
        """Say that the execution that computes the values was waited for, and went well."""
        self._ready = True
        self.handle.running = False

    def __await__(self) -> Generator[Any, None, Buffer]:
        event = self.ready_event()
        try:
            yield from event.__await__()
        finally:
            event.close()
        return self

    def copy_to(self, where: Device | Memory) -> Buffer:
        """A copy on another device of the same client, or in another memory space.

        A copy has the plugin's default layout and static dimensions, also where its original has
        not; such an original goes through host memory.

        Raises:
            DataError: no device or memory space of this client.
            PjrtError: the plugin cannot copy there, or the computation of the values failed.
        """
        client = self.client
        if not isinstance(where, (Device, Memory)):
            raise DataError(f"found {where!r}, expected a device or a memory space")
        memory = where if isinstance(where, Memory) else None
        device = client.place(where if isinstance(where, Device) else None, memory)
        # Plugins keep the bytes of another layout as they are, and give them the default layout.
        if self.custom_layout is not None or self.dynamic:
            return client.put(self.to_numpy(), device, memory=memory, copy=True)
        with self.held() as pointer:
            if memory is None:
                made = client.api.call(
                    "Buffer_CopyToDevice", buffer=pointer, dst_device=device.pointer
                )
            else:
                made = client.api.call(
                    "Buffer_CopyToMemory", buffer=pointer, dst_memory=memory.pointer
                )
            copy = Buffer(client, made.dst_buffer, self.type, device)
            copy.handle.running = True
            return copy

    def delete(self) -> None:
        """Free the memory as soon as nothing reads it; later uses raise BufferUnavailable."""
        self.handle.release()

    def __enter__(self) -> Buffer:
        return self

    def __exit__(self, *exc: object) -> None:
        self.delete()

    def __del__(self, release_soon: Finalizer = release_soon) -> None:
        release_soon(getattr(self, "handle", None))

    # -- reading ---------------------------------------------------------------------------------

    def true_shape(self) -> tuple[int, ...]:
        """Elements per dimension; for a `dynamic` buffer waits, and may be smaller than `shape`.

        Raises:
            PjrtError: the computation of the values failed.
            PluginIncompatible: the plugin gave a shape that is beyond the bounds.
        """
        if not self.dynamic:
            return self.shape
        with self.held() as pointer:
            self._wait(pointer)
            found = self.client.api.call("Buffer_UnpaddedDimensions", buffer=pointer)
            shape = read_int64s(found.unpadded_dims, found.num_dims)
        if len(shape) != len(self.shape) or any(map(gt, shape, self.shape)) or min(shape) < 0:
            raise PluginIncompatible(
                f"plugin {self.client.plugin.name!r}: Buffer_UnpaddedDimensions gave {shape} for "
                f"a buffer of the bounds {self.shape}"
            )
        return shape

    def to_numpy(self) -> np.ndarray[Any, Any]:
        """A copy of the values in host memory, in row-major order, bounded dimensions cut to size.

        Raises:
            PjrtError: the computation or the transfer failed.
        """
        with self.held():
            shape, layout = self.true_shape(), self.layout
            if layout.row_major or not self.client.reads_in_memory_order:
                return self.read_raw(shape)
            order = tuple(reversed(layout.minor_to_major))
            raw = self.read_raw(tuple(shape[dim] for dim in order))
        return np.ascontiguousarray(raw.transpose(np.argsort(order)))

    def read_raw(self, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
        """The elements in the order in which the plugin gives them, as an array of some shape.

        Raises:
            PjrtError: the computation or the transfer failed.
        """
        with self.held() as pointer:
            raw = np.empty(shape, self.dtype.numpy)
            api = self.client.api
            with timeline.span("copy to host", bytes=raw.nbytes):
                copied = api.call(
                    "Buffer_ToHostBuffer",
                    src=pointer,
                    dst=raw.__array_interface__["data"][0],
                    dst_size=raw.nbytes,
                )
                self.handle.wait(copied.event, raw)
            self.mark_ready()
        return raw

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        if copy is False and not self._shares_memory():
            raise ValueError(
                f"buffer {self.type} of plugin {self.client.plugin.name!r} is not in host memory "
                "that NumPy can view; use copy=None"
            )
        array = self.to_numpy() if copy or not self._shares_memory() else self._numpy_view()
        if dtype is None or array.dtype == dtype:
            return array
        if copy is False:
            raise ValueError(f"buffer {self.type} cannot be viewed as {np.dtype(dtype)}")
        return array.astype(dtype)

    def _shares_memory(self) -> bool:
        return self.client.shares_host_memory and self.dtype.bits >= 8

    def _view(self, dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
        """The host memory as an array of elements as wide as the buffer's, which keeps it."""
        try:
            pin = Pin(self.handle)
        except Closed:
            raise self.unavailable() from None
        memory: Any = (ctypes.c_char * max(self.type.nbytes, 1)).from_address(
            self.address or NOWHERE
        )
        # ndarray -> memory -> Pin: the view holds the device memory.
        memory._pin = pin
        # Programs write bounded results densely, in their true shape.
        shape = self.true_shape()
        strides = [step * dtype.itemsize for step in self.layout.strides(shape)]
        return np.ndarray(shape, dtype, memory, strides=strides)

    def _numpy_view(self) -> np.ndarray[Any, Any]:
        array = self._view(self.dtype.numpy)
        array.flags.writeable = False
        return array

    def __dlpack_device__(self) -> tuple[int, int]:
        if self._shares_memory():
            return dlpack.CPU, 0
        place = device_dlpack.place_of(self)
        if place is None:
            raise BufferError(
                f"buffer {self.type} of plugin {self.client.plugin.name!r} has no DLPack form; "
                "use numpy.asarray(buffer)"
            )
        return place

    def __dlpack__(
        self,
        *,
        stream: object = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        device = self.__dlpack_device__()
        if dl_device not in (None, device):
            raise BufferError(f"buffer {self.type} is on DLPack device {device}, not {dl_device}")
        host = device[0] == dlpack.CPU
        if host and stream is not None:
            raise BufferError("host memory has no streams; pass stream=None")
        if copy:
            made = self.copy_to(self.device)
            return made.__dlpack__(max_version=max_version, stream=stream)
        versioned = max_version is not None and max_version[0] >= 1
        if not host:
            return device_dlpack.export(self, device, stream=stream, versioned=versioned)
        return dlpack.export(self._view(dlpack.words(self.dtype)), self.dtype, versioned=versioned)

    def __repr__(self) -> str:
        return f"<Buffer {self.type} on device {self.device.id} ({self.state.value})>"


class _Held:
    __slots__ = ("_buffer", "_handle")

    def __init__(self, buffer: Buffer) -> None:
        self._buffer = buffer
        self._handle = buffer.handle

    def __enter__(self) -> int:
        try:
            self._handle.pin()
        except Closed:
            raise self._buffer.unavailable() from None
        return self._handle.pointer

    def __exit__(self, *exc: object) -> None:
        self._handle.unpin()
