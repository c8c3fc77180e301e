"""Buffer: an array on a device, made of host memory, copied, and read."""

from __future__ import annotations

import ctypes
from types import NoneType
from typing import Any

import numpy as np

from pjrt_bridge import timeline
from pjrt_bridge.errors import ArgumentError, Closed, DataError
from pjrt_bridge.runtime.core.buffer_core import BufferCore
from pjrt_bridge.runtime.core.client_core import ClientCore
from pjrt_bridge.runtime.core.device import Device, Memory
from pjrt_bridge.runtime.core.layout import Layout
from pjrt_bridge.runtime.ownership.buffers import BufferHandle
from pjrt_bridge.runtime.ownership.pins import Pin
from pjrt_bridge.runtime.transfers import device_dlpack, dlpack
from pjrt_bridge.runtime.transfers.host import NOWHERE, HostArray, describe
from pjrt_bridge.runtime.transfers.transfer import transfer
from pjrt_bridge.stablehlo.types import TensorType
from pjrt_bridge.wrong_arguments import checked, require, wrong


class Buffer(BufferCore):
    """An immutable array on a device.

    A buffer may not hold its values yet: an execution goes on while its results are passed around.
    Reading waits. Buffers are made by `Client.put` and by executions. What they tell of themselves
    is described in `BufferCore`.
    """

    __slots__ = ()

    @classmethod
    @checked
    def of_host(
        cls,
        client: ClientCore,
        host: HostArray,
        device: Device,
        memory: Memory | None = None,
        *,
        share: bool,
        writable: bool = False,
        layout: Layout | None = None,
        shape: tuple[int, ...] | None = None,
    ) -> Buffer:
        """A buffer of host memory; see `pjrt_bridge.runtime.transfers.transfer`.

        With `shape` the elements of `host` are in the order of `layout`, and this is the shape of
        the buffer.

        Raises:
            ArgumentError: an argument of a wrong kind.
        """
        require(host, HostArray, "Buffer.of_host: host")
        require(client, ClientCore, "Buffer.of_host: client")
        require(device, Device, "Buffer.of_host: device")
        require(memory, (Memory, NoneType), "Buffer.of_host: memory")
        type = TensorType(host.shape if shape is None else shape, host.dtype)
        order = None if layout is None else client.custom_layout(layout.minor_to_major)
        made = BufferHandle(client.handle)
        try:
            transfer(
                client,
                made,
                host,
                type,
                device,
                memory,
                share=share,
                writable=writable,
                layout=layout,
            )
            return cls(client, made, type, device, custom_layout=order)
        except BaseException:
            made.release()
            raise

    @classmethod
    @checked
    def of_pointer(
        cls, client: ClientCore, pointer: int | None, type: TensorType, device: Device
    ) -> Buffer:
        """The bridge's object over a PJRT_Buffer, which it takes over.

        Whether the address is that of a buffer of this client cannot be seen.

        Raises:
            ArgumentError: an argument of a wrong kind, or no address; nothing was taken over.
            PluginIncompatible: a NULL.
        """
        require(client, ClientCore, "Buffer.of_pointer: client")
        if pointer is not None:
            require(pointer, int, "Buffer.of_pointer: pointer")
            # Of what lies there nothing can be seen: plugins may give numbers of their own.
            if not 0 <= pointer < 1 << 64:
                raise ArgumentError(
                    wrong("Buffer.of_pointer: pointer", pointer, "the address of a PJRT_Buffer")
                )
        require(type, TensorType, "Buffer.of_pointer: type")
        require(device, Device, "Buffer.of_pointer: device")
        with BufferHandle(client.handle) as made:
            made.own(pointer)
            return cls(client, made, type, device)

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
            return Buffer.of_host(client, describe(self.to_numpy()), device, memory, share=False)
        with (
            self.held() as pointer,
            BufferHandle(client.handle, out="dst_buffer") as made,
        ):
            made.running = True
            if memory is None:
                made.make("Buffer_CopyToDevice", buffer=pointer, dst_device=device.pointer)
            else:
                made.make("Buffer_CopyToMemory", buffer=pointer, dst_memory=memory.pointer)
            return Buffer(client, made, self.type, device)

    # -- reading ---------------------------------------------------------------------------------

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

    @checked
    def read_raw(self, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
        """The elements in the order in which the plugin gives them, as an array of some shape.

        Raises:
            PjrtError: the computation or the transfer failed.
        """
        with self.held() as pointer:
            raw = np.empty(shape, self.dtype.numpy)
            with timeline.span("copy to host", bytes=raw.nbytes):
                self.handle.wait_for(
                    "Buffer_ToHostBuffer",
                    memory=raw,
                    src=pointer,
                    dst=raw.__array_interface__["data"][0],
                    dst_size=raw.nbytes,
                )
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
        if max_version is not None and not dlpack.is_version(max_version):
            raise BufferError(wrong("max_version", max_version, "two numbers or None"))
        versioned = max_version is not None and max_version[0] >= 1
        if not host:
            return device_dlpack.export(self, device, stream=stream, versioned=versioned)
        return dlpack.export(self._view(dlpack.words(self.dtype)), self.dtype, versioned=versioned)

    def __repr__(self) -> str:
        return f"<Buffer {self.type} on device {self.device.id} ({self.state.value})>"
