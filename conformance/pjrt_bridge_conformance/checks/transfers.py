"""Buffers that are made first and filled later, through a transfer manager."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from pjrt_bridge import dtypes
from pjrt_bridge.abi.structs import STRUCTS
from pjrt_bridge.abi.values import int64s
from pjrt_bridge.errors import ErrorCode
from pjrt_bridge.runtime import Buffer, Client
from pjrt_bridge.stablehlo.builder.constants import Array
from pjrt_bridge_conformance import raw
from pjrt_bridge_conformance.check import Group
from pjrt_bridge_conformance.context import Context
from pjrt_bridge_conformance.expect import equal, refused, require, same, works

TRANSFERS = Group("data")

F32 = dtypes.of("float32")
_X = np.arange(24, dtype=np.float32).reshape(4, 6)


class _Transfer:
    """A transfer manager for two buffers of 4x6 and 8 float32."""

    SHAPES = ((4, 6), (8,))

    def __init__(self, client: Client) -> None:
        self.client, self.api = client, client.api
        raw.need(self.api, "Client_CreateBuffersForAsyncHostToDevice")
        dims = [int64s(shape) for shape in self.SHAPES]
        specs = (STRUCTS["PJRT_ShapeSpec"].ctype * len(dims))()
        for spec, shape in zip(specs, dims, strict=True):
            spec.struct_size = STRUCTS["PJRT_ShapeSpec"].size
            spec.dims, spec.num_dims = ctypes.addressof(shape), len(shape)
            spec.element_type = F32.code
        made = self.api.call(
            "Client_CreateBuffersForAsyncHostToDevice",
            client=client.handle.pointer,
            shape_specs=ctypes.addressof(specs),
            num_shape_specs=len(dims),
            memory=raw.default_memory(client),
        )
        self.pointer = int(made.transfer_manager)

    def ask(self, function: str, **values: Any) -> Any:
        name = f"AsyncHostToDeviceTransferManager_{function}"
        return self.api.call(name, transfer_manager=self.pointer, **values)

    def buffer(self, index: int) -> Buffer:
        made = self.ask("RetrieveBuffer", buffer_index=index)
        return raw.buffer(self.client, made.buffer_out, *self.SHAPES[index])

    def send(self, index: int, data: Array, offset: int = 0, *, last: bool = True) -> None:
        sent = self.ask(
            "TransferData",
            buffer_index=index,
            data=raw.address(data),
            offset=offset,
            transfer_size=data.nbytes,
            is_last_transfer=last,
        )
        raw.finish(self.api, sent.done_with_h2d_transfer)


@contextmanager
def _transfer(context: Context) -> Iterator[_Transfer]:
    made = _Transfer(context.client)
    try:
        yield made
    finally:
        made.ask("Destroy")


@TRANSFERS.check
def async_transfer(context: Context) -> None:
    """Buffers that are filled later are not ready before, and hold what was sent."""
    y = np.arange(8, dtype=np.float32)
    with _transfer(context) as transfer:
        first, second = transfer.buffer(0), transfer.buffer(1)
        require(not first.ready(), "a buffer is ready before anything was sent")
        transfer.send(1, y)
        transfer.send(0, _X)
        same(first.to_numpy(), _X, "the first buffer")
        same(second.to_numpy(), y, "the second buffer")


@TRANSFERS.check
def async_transfer_in_parts(context: Context) -> None:
    """A buffer can be filled in parts, in any order."""
    flat = _X.reshape(-1)
    with _transfer(context) as transfer:
        buffer = transfer.buffer(0)
        transfer.send(0, flat[12:].copy(), 48, last=False)
        transfer.send(0, flat[:12].copy(), 0)
        same(buffer.to_numpy(), _X, "a buffer that was sent in two parts")
        transfer.ask("SetBufferError", buffer_index=1, error_code=1)


@TRANSFERS.check
def async_transfer_described(context: Context) -> None:
    """A transfer manager knows its device, and number and sizes of its buffers."""
    with _transfer(context) as transfer:
        equal(transfer.ask("BufferCount").buffer_count, 2, "buffers")
        sizes = [transfer.ask("BufferSize", buffer_index=i).buffer_size for i in range(2)]
        equal(sizes, [96, 32], "sizes")
        device = transfer.ask("Device").device_out
        equal(device, context.client.devices[0].pointer, "device")
        for index in range(2):
            transfer.ask("SetBufferError", buffer_index=index, error_code=1)


@TRANSFERS.check
def async_transfer_error(context: Context) -> None:
    """A transfer that ends with an error gives that error to the buffer's readers."""
    text = b"the disk is on fire"
    memory = ctypes.create_string_buffer(text, len(text))
    with _transfer(context) as transfer:
        buffer = transfer.buffer(0)
        transfer.ask(
            "SetBufferError",
            buffer_index=0,
            error_code=int(ErrorCode.DATA_LOSS),
            error_message=ctypes.addressof(memory),
            error_message_size=len(text),
        )
        error = refused(buffer.to_numpy, "reading a buffer whose transfer failed")
        require(text.decode() in error.message, f"the error says {error.message!r}")
        transfer.send(1, np.zeros(8, np.float32))
    works(context.client, "a transfer that failed")
