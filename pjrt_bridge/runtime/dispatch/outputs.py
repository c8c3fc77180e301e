"""Results of the compiled module's shortcuts, as buffers."""

from __future__ import annotations

from typing import Any

from pjrt_bridge.runtime import native
from pjrt_bridge.runtime.buffers.buffer import Buffer
from pjrt_bridge.runtime.core.client_core import ClientCore
from pjrt_bridge.runtime.core.device import Device
from pjrt_bridge.runtime.core.layout import Layout
from pjrt_bridge.runtime.ownership.buffers import BufferHandle
from pjrt_bridge.runtime.ownership.handles import BUNDLE
from pjrt_bridge.stablehlo.types import TensorType

_TYPE: Any = None if native.module is None else native.module.Output


def is_output(value: object) -> bool:
    """Whether a value is a result of the compiled module."""
    return type(value) is _TYPE


def buffer_of(
    output: Any, client: ClientCore, type: TensorType, device: Device, layout: Layout | None = None
) -> Buffer:
    """A buffer over a result, which keeps it; `layout` is asked for where it is not given."""
    with _OutputHandle(client, output) as handle:
        handle.own(output.pointer)
        return Buffer(client, handle, type, device, layout)


def output_of(buffer: Buffer) -> Any:
    """The result that a buffer is over; None for one of its own."""
    handle = buffer.handle
    return handle.output if isinstance(handle, _OutputHandle) else None


class _OutputHandle(BufferHandle):
    """A plugin's buffer that belongs to a result of the compiled module."""

    __slots__ = ("output",)

    def __init__(self, client: ClientCore, output: Any) -> None:
        super().__init__(client.handle)
        # The compiled module counts the buffer.
        self.kind = BUNDLE
        self.output = output

    def dispatched(self) -> object:
        """See `BufferHandle`."""
        return None if self.released else self.output

    def await_address(self) -> int | None:
        """See `BufferHandle`."""
        output = self.output
        found: int | None = None if output is None else output.address()
        return found

    def wait_for(self, function: str, memory: object = None, **values: Any) -> None:
        """See `BufferHandle`; the compiled module waits for the execution, without Python's sleep.

        Raises:
            PjrtError: the operation failed.
            PluginIncompatible: there is no event, but a NULL, so its end is not known.
        """
        output = self.output
        if output is not None:
            output.wait()
        super().wait_for(function, memory, **values)

    def _destroy(self) -> None:
        # A call of the compiled module on another thread may use it still.
        self.output = None
