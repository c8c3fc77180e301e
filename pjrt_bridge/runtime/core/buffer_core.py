"""BufferCore: an array on a device, what is known of it, and waiting for its values."""

from __future__ import annotations

from collections.abc import Generator
from enum import Enum
from operator import gt
from typing import Any, Self

from pjrt_bridge.abi.values import read_int64s
from pjrt_bridge.dtypes import DType
from pjrt_bridge.errors import BufferUnavailable, Closed, PluginIncompatible
from pjrt_bridge.runtime.core.client_core import ClientCore
from pjrt_bridge.runtime.core.device import Device, Memory
from pjrt_bridge.runtime.core.event import Event
from pjrt_bridge.runtime.core.layout import Layout
from pjrt_bridge.runtime.ownership.buffers import BufferHandle
from pjrt_bridge.runtime.ownership.handles import Finalizer, release_soon
from pjrt_bridge.stablehlo.types import TensorType
from pjrt_bridge.wrong_arguments import require


class BufferState(Enum):
    """The state of a buffer: which uses of it are still possible."""

    LIVE = "live"
    DONATED = "donated"
    DELETED = "deleted"


class BufferCore:
    """An array on a device, as what moves its values knows it; `Buffer` is the only subclass.

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
        client: ClientCore,
        handle: BufferHandle,
        type: TensorType,
        device: Device,
        layout: Layout | None = None,
        custom_layout: tuple[int, ...] | None = None,
        dynamic: bool = False,
    ) -> None:
        require(handle, BufferHandle, "Buffer: handle")
        require(type, TensorType, "Buffer: type")
        self.client = client
        self.type = type
        self.device = device
        self.custom_layout = custom_layout
        self.dynamic = dynamic
        self._layout = layout
        self._ready = False
        self._donated_to: str | None = None
        self.handle = handle

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
            found = self.handle.await_address()
            if found:
                self.mark_ready()
                return found
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

    def held(self) -> _PinnedPointer:
        """Keep the plugin's object during a `with` block, and give its pointer.

        Raises:
            BufferUnavailable: the buffer was donated or deleted, or its client was closed.
        """
        return _PinnedPointer(self)

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
        """Record that an execution consumed the buffer; `to` is what errors call it.

        Raises:
            ArgumentError: `to` is no text; the buffer stays as it was.
        """
        require(to, str, "Buffer.mark_donated: to")
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
            return Event.make(self.client.handle, "Buffer_ReadyEvent", buffer=pointer)

    def block_until_ready(self) -> Self:
        """Wait until the values are there; other Python threads go on.

        Raises:
            PjrtError: the computation of the values failed.
        """
        with self.held() as pointer:
            self._wait(pointer)
        return self

    def _wait(self, pointer: int) -> None:
        if not self._ready:
            if not self.handle.await_address():
                self.handle.wait_for("Buffer_ReadyEvent", buffer=pointer)
            self.mark_ready()

    def mark_ready(self) -> None:
        """Say that the execution that computes the values was waited for, and went well."""
        self._ready = True
        self.handle.running = False

    def __await__(self) -> Generator[Any, None, Self]:
        event = self.ready_event()
        try:
            yield from event.__await__()
        finally:
            event.close()
        return self

    def delete(self) -> None:
        """Free the memory as soon as nothing reads it; later uses raise BufferUnavailable."""
        self.handle.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.delete()

    def __del__(self, release_soon: Finalizer = release_soon) -> None:
        release_soon(getattr(self, "handle", None))

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


class _PinnedPointer:
    __slots__ = ("_buffer", "_handle")

    def __init__(self, buffer: BufferCore) -> None:
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
