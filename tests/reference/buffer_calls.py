"""Calls of the table that put buffers, read and end them."""

import ctypes
from typing import Any

import numpy as np

from pjrt_bridge import dtypes
from pjrt_bridge.abi.structs import STRUCTS
from pjrt_bridge.abi.values import int64s
from pjrt_bridge.runtime import Client

F32 = dtypes.of("float32").code


def tiled(order: tuple[int, ...], tiles: int = 0) -> Any:
    layout = STRUCTS["PJRT_Buffer_MemoryLayout"].new(type=0)
    layout.steps = int64s(order)
    layout.layout.minor_to_major = ctypes.addressof(layout.steps)
    layout.layout.minor_to_major_size = len(order)
    layout.layout.num_tiles = tiles
    return layout


def strided(strides: tuple[int, ...]) -> Any:
    layout = STRUCTS["PJRT_Buffer_MemoryLayout"].new(type=1)
    layout.steps = int64s(strides)
    struct = STRUCTS["PJRT_Buffer_MemoryLayout_Strides"].ctype.from_buffer(
        layout, STRUCTS["PJRT_Buffer_MemoryLayout"].offset("layout")
    )
    struct.byte_strides, struct.num_byte_strides = ctypes.addressof(layout.steps), len(strides)
    return layout


def put(client: Client, array: np.ndarray[Any, Any], **values: Any) -> Any:
    """PJRT_Client_BufferFromHostBuffer on an array with any strides."""
    values = {
        "client": client.handle.pointer,
        "data": array.__array_interface__["data"][0],
        "type": dtypes.from_numpy(array.dtype).code,
        "dims": int64s(array.shape),
        "num_dims": array.ndim,
        "byte_strides": int64s(array.strides),
        "num_byte_strides": array.ndim,
        "device": client.devices[0].pointer,
    } | values
    return client.api.call("Client_BufferFromHostBuffer", **values)


def get(
    client: Client, buffer: int, dtype: Any, shape: tuple[int, ...], layout: Any = None
) -> np.ndarray[Any, Any]:
    """The bytes of PJRT_Buffer_ToHostBuffer as a flat array."""
    asked = client.api.call("Buffer_ToHostBuffer", src=buffer, host_layout=layout)
    assert not asked.event
    raw = np.zeros(asked.dst_size // np.dtype(dtype).itemsize, dtype)
    copied = client.api.call(
        "Buffer_ToHostBuffer",
        src=buffer,
        host_layout=layout,
        dst=raw.__array_interface__["data"][0],
        dst_size=raw.nbytes,
    )
    client.api.call("Event_Await", event=copied.event)
    client.api.call("Event_Destroy", event=copied.event)
    return raw


def end(client: Client, *buffers: int, events: tuple[int, ...] = ()) -> None:
    for buffer in buffers:
        client.api.call("Buffer_Destroy", buffer=buffer)
    for event in events:
        client.api.call("Event_Destroy", event=event)


def aligned(count: int) -> np.ndarray[Any, Any]:
    raw = np.zeros(4 * count + 64, np.uint8)
    start = -raw.__array_interface__["data"][0] % 64
    return raw[start : start + 4 * count].view(np.float32)
