"""Buffers whose values come, or fail, when a test says so."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from pjrt_bridge.abi.structs import STRUCTS
from pjrt_bridge.abi.values import int64s
from pjrt_bridge.dtypes import from_numpy
from pjrt_bridge.errors import ErrorCode
from pjrt_bridge.runtime import Buffer, Client
from pjrt_bridge.stablehlo.types import TensorType


class Pending:
    """One buffer of an asynchronous host-to-device transfer.

    Attributes:
        buffer: without values until `arrive` or `fail`.
    """

    def __init__(self, client: Client, data: np.ndarray[Any, Any]) -> None:
        self._api = client.api
        self._data = data
        dims = int64s(data.shape)
        dtype = from_numpy(data.dtype)
        spec = STRUCTS["PJRT_ShapeSpec"].new(
            dims=ctypes.addressof(dims), num_dims=data.ndim, element_type=dtype.code
        )
        self._manager = self._api.call(
            "Client_CreateBuffersForAsyncHostToDevice",
            client=client.handle.pointer,
            shape_specs=spec,
            num_shape_specs=1,
            memory=client.memories[0].pointer,
        ).transfer_manager
        pointer = self._call("RetrieveBuffer").buffer_out
        type = TensorType(data.shape, dtype)
        self.buffer = Buffer.of_pointer(client, pointer, type, client.devices[0])

    def _call(self, function: str, **values: Any) -> Any:
        return self._api.call(
            f"AsyncHostToDeviceTransferManager_{function}",
            transfer_manager=self._manager,
            buffer_index=0,
            **values,
        )

    def arrive(self) -> None:
        """The values are there."""
        done = self._call(
            "TransferData",
            data=self._data.ctypes.data,
            transfer_size=self._data.nbytes,
            is_last_transfer=True,
        ).done_with_h2d_transfer
        self._api.call("Event_Await", event=done)
        self._api.call("Event_Destroy", event=done)
        self.close()

    def fail(self, message: str) -> None:
        """The transfer failed."""
        text = ctypes.create_string_buffer(message.encode())
        self._call(
            "SetBufferError",
            error_code=int(ErrorCode.INTERNAL),
            error_message=text,
            error_message_size=len(message),
        )
        self.close()

    def close(self) -> None:
        """Give the transfer up; values that did not arrive fail."""
        self._api.call("AsyncHostToDeviceTransferManager_Destroy", transfer_manager=self._manager)
