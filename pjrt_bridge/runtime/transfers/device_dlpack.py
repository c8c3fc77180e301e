"""Buffers in the memory of a GPU, for frameworks that read DLPack, and the order of streams.

Frameworks and plugins queue work on streams and do not wait for it. So each crossing is ordered:
what comes in is queued behind its producer's stream on a stream that the plugin names, and whoever
takes a buffer gets it behind the plugin's work on the stream that they name (DLPack, Python
specification, `stream`; pjrt_c_api_stream_extension.h).
"""

from __future__ import annotations

import ctypes
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np

from pjrt_bridge.abi.extension_structs import by_name
from pjrt_bridge.errors import Closed, DataError
from pjrt_bridge.runtime.core.buffer_core import BufferCore
from pjrt_bridge.runtime.core.client_core import ClientCore
from pjrt_bridge.runtime.core.device import Device
from pjrt_bridge.runtime.core.platforms import StreamEvents
from pjrt_bridge.runtime.ownership.deferred import defer
from pjrt_bridge.runtime.ownership.pins import Pin
from pjrt_bridge.runtime.transfers import dlpack
from pjrt_bridge.runtime.transfers.host import ALIGNMENT

_LEGACY_STREAM = 1
"""What DLPack means where a consumer names no stream: CUDA's default one."""

_NO_ORDER = -1
"""A consumer's word that it orders the streams itself."""

_STREAM = by_name("Stream")


def place_of(buffer: BufferCore) -> tuple[int, int] | None:
    """The DLPack device that a buffer is on; None where it has none."""
    kind = buffer.client.platform_spec.dlpack_device_type
    if kind is None or buffer.dtype.bits < 8 or buffer.dtype.dlpack is None:
        return None
    # Pinned host memory is no device memory to a consumer.
    if buffer.memory not in (None, buffer.device.default_memory):
        return None
    return kind, buffer.device.local_hardware_id


def export(buffer: BufferCore, place: tuple[int, int], *, stream: object, versioned: bool) -> Any:
    """A capsule over a buffer's device memory, whose values are there for work on a stream.

    Args:
        buffer: what `place_of` gave a place for; not donated while the capsule lives.
        place: that place.
        stream: the consumer's, as an int; None for the default one, -1 for no order.
        versioned: as `dlpack.export`.

    Raises:
        BufferError: no stream, or bounded dimensions.
        BufferUnavailable: the buffer was donated or deleted.
    """
    if buffer.dynamic:
        raise BufferError(f"buffer {buffer.type} has bounded dimensions; use numpy.asarray(buffer)")
    if stream is None:
        stream = _LEGACY_STREAM
    if not isinstance(stream, int) or stream < _NO_ORDER or stream == 0:
        raise BufferError(f"found {stream!r} for a stream, expected its handle, None or -1")
    try:
        pin = Pin(buffer.handle)
    except Closed:
        raise buffer.unavailable() from None
    _LENT.sweep()
    if stream != _NO_ORDER and not _queue_behind(buffer, stream):
        buffer.block_until_ready()
    address = buffer.client.api.call(
        "Buffer_OpaqueDeviceMemoryDataPointer", buffer=buffer.handle.pointer
    ).device_memory_ptr
    dtype = dlpack.words(buffer.dtype)
    # Nothing is read through these two; NumPy makes the capsule of what they state.
    memory: Any = (ctypes.c_char * max(buffer.type.nbytes, 1)).from_address(address or ALIGNMENT)
    events = buffer.client.platform_spec.stream_events
    ordered = events is not None and stream != _NO_ORDER
    memory._pin = _Lent(pin, events, place[1], stream) if events and ordered else pin
    steps = [step * dtype.itemsize for step in buffer.layout.strides(buffer.shape)]
    array: np.ndarray[Any, Any] = np.ndarray(buffer.shape, dtype, memory, strides=steps)
    return dlpack.export(array, buffer.dtype, versioned=versioned, device=place)


class _Lent:
    """The hold of a consumer on a buffer's memory, which its work may use after it let go of it.

    Plugins would give the memory to the next program that needs some, whose work is on another
    stream than the consumer's.

    Args:
        pin: holds the buffer.
        events: of the platform.
        device: its number in the machine.
        stream: the consumer's.
    """

    __slots__ = ("_let_go",)

    def __init__(self, pin: Pin, events: StreamEvents, device: int, stream: int) -> None:
        self._let_go = partial(_LENT.let_go, pin, events, device, stream)

    def __del__(self, defer: Callable[[Callable[[], None]], None] = defer) -> None:
        if hasattr(self, "_let_go"):
            defer(self._let_go)


class _LentMemory:
    """The holds that consumers let go of, until their work is over."""

    def __init__(self) -> None:
        self._held: deque[tuple[StreamEvents, object, Pin]] = deque()

    def let_go(self, pin: Pin, events: StreamEvents, device: int, stream: int) -> None:
        """Keep a hold until the work that is on a stream now is over."""
        # Where no event can be had, the consumer has done with the memory, as DLPack has it.
        with suppress(DataError):
            self._held.append((events, events.record(device, stream), pin))
        self.sweep()

    def sweep(self) -> None:
        """Drop the holds of work that is over."""
        # Threads sweep at the same time, and each hold is looked at by one of them.
        with suppress(IndexError):
            while True:
                first = self._held.popleft()
                if not first[0].is_over(first[1]):
                    self._held.appendleft(first)
                    return


_LENT = _LentMemory()


def _queue_behind(buffer: BufferCore, stream: int) -> bool:
    """Let a stream wait for a buffer's values; whether the plugin can."""
    function = _function(buffer.client, "wait_stream")
    if function is None:
        return False
    values = {"stream": stream, "buffer": buffer.handle.pointer}
    buffer.client.api.invoke(function, "Stream_wait_stream", values)
    return True


def plugin_stream(client: ClientCore, device: Device) -> int | None:
    """A stream that the plugin reads events of others from; None where it names none."""
    function = _function(client, "get_stream")
    if function is None:
        return None
    found = client.api.invoke(function, "Stream_get_stream", {"device": device.pointer})
    return int(found.stream) or None


def _function(client: ClientCore, name: str) -> Any:
    args = _STREAM.functions[name]
    for link in client.extensions:
        pointer = link.pointer(_STREAM.offset_of(name)) if link.type == _STREAM.type else None
        if pointer is not None and args is not None:
            return client.api.entry(pointer, args)
    return None
