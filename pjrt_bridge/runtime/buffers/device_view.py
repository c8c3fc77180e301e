"""Arrays of frameworks in the memory of a GPU, used by a plugin where they lie.

`pjrt_bridge.runtime.transfers.device_dlpack` says how the work of both is ordered.
"""

from __future__ import annotations

import ctypes
import itertools
from functools import partial
from typing import Any

from pjrt_bridge.abi.values import int64s
from pjrt_bridge.errors import DataError
from pjrt_bridge.runtime.buffers.buffer import Buffer
from pjrt_bridge.runtime.core.client_core import ClientCore
from pjrt_bridge.runtime.core.device import Device
from pjrt_bridge.runtime.ownership.buffers import BufferHandle
from pjrt_bridge.runtime.ownership.deferred import defer
from pjrt_bridge.runtime.transfers import device_dlpack, dlpack
from pjrt_bridge.runtime.transfers.host import ALIGNMENT
from pjrt_bridge.stablehlo.types import TensorType

_tokens = itertools.count(1)
_lent: dict[int, object] = {}


def lent() -> int:
    """Arrays of others that plugins have not done with."""
    return len(_lent)


def _forget(token: int) -> None:
    _lent.pop(token, None)


def _done(_address: int | None, token: int | None) -> None:
    # This is a thread of the plugin, maybe inside a call: the end of an array may call it again.
    defer(partial(_forget, token or 0), later=True)


_on_delete = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)(_done)


def is_on_device(client: ClientCore, data: Any) -> bool:
    """Whether an array of another library lies in memory that the client's devices have."""
    kind = client.platform_spec.dlpack_device_type
    if kind is None or not (hasattr(data, "__dlpack__") and hasattr(data, "__dlpack_device__")):
        return False
    return bool(data.__dlpack_device__()[0] == kind)


def put(
    client: ClientCore,
    data: Any,
    device: Device | None,
    *,
    copy: bool | None,
    type: TensorType | None = None,
) -> Buffer:
    """A buffer over an array for which `is_on_device` holds, queued behind the array's stream.

    Args:
        client: the buffer's.
        data: the array; it is kept until the plugin has done with its memory.
        device: where it has to be; None: where it is.
        copy: a buffer of its own.
        type: of the buffer, where `data` is the bytes of its elements.

    Raises:
        DataError: the array is elsewhere, strided or not aligned.
        PjrtError: the plugin refused.
    """
    kind, ordinal = data.__dlpack_device__()
    place = next((one for one in client.devices if one.local_hardware_id == ordinal), None)
    if place is None or device not in (None, place):
        raise DataError(
            f"found an array on GPU {ordinal}, expected it on {device or client.devices}; move it "
            "there first"
        )
    stream = device_dlpack.plugin_stream(client, place)
    found = dlpack.Imported(data, device_type=kind, stream=stream)
    if found.byte_strides is not None or found.address % ALIGNMENT:
        raise DataError(
            f"an array of {found.dtype} at {found.address:#x} on GPU {ordinal} cannot be shared: "
            f"it needs row-major order and {ALIGNMENT}-byte alignment; make it contiguous"
        )
    type = type or TensorType(found.shape, found.dtype)
    made = view(client, place, type, found.address, stream=stream or 0, owner=found.owner)
    return made.copy_to(place) if copy else made


def view(
    client: ClientCore,
    device: Device,
    type: TensorType,
    address: int,
    *,
    stream: int,
    owner: object,
) -> Buffer:
    """A buffer over memory of a device that the plugin does not own.

    Args:
        client: the buffer's.
        device: whose memory it is.
        type: row-major elements there.
        address: of the first element.
        stream: work that makes the elements is queued there; 0 where they are there.
        owner: kept until the plugin has done with the memory.

    Raises:
        UnsupportedDtype: the plugin does not know the element type.
        PjrtError: the plugin refused.
    """
    client.check_dtype(type.dtype)
    dims = int64s(type.shape)
    token = next(_tokens)
    with client.handle.held() as pointer, BufferHandle(client.handle) as made:
        _lent[token] = owner
        try:
            made.make(
                "Client_CreateViewOfDeviceBuffer",
                client=pointer,
                device_buffer_ptr=address,
                dims=ctypes.addressof(dims),
                num_dims=len(dims),
                element_type=type.dtype.code,
                device=device.pointer,
                on_delete_callback=ctypes.cast(_on_delete, ctypes.c_void_p).value,
                on_delete_callback_arg=token,
                stream=stream,
                memory=device.default_memory and device.default_memory.pointer,
            )
        except BaseException:
            # A buffer that is there calls back at its end. The plugin may have called back already.
            if not made.find():
                _lent.pop(token, None)
            raise
        return Buffer(client, made, type, device)
