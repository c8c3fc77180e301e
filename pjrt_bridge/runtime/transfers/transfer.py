"""Host memory into buffers: shared with the plugin, or copied by it."""

from __future__ import annotations

import ctypes
import time
from typing import TYPE_CHECKING

import numpy as np

from pjrt_bridge import timeline
from pjrt_bridge.abi.values import int64s
from pjrt_bridge.errors import PjrtError
from pjrt_bridge.runtime.objects.buffer import Buffer
from pjrt_bridge.runtime.objects.device import Device, Memory
from pjrt_bridge.runtime.transfers.host import ALIGNMENT, NOWHERE, HostArray, describe
from pjrt_bridge.runtime.transfers.layout import Layout
from pjrt_bridge.stablehlo.types import TensorType

if TYPE_CHECKING:
    from pjrt_bridge.runtime.objects.client import Client

# Without the counts views of a buffer could not be kept from a donation.
_NEEDED = (
    "Buffer_OpaqueDeviceMemoryDataPointer",
    "Buffer_IsOnCpu",
    "Buffer_IncreaseExternalReferenceCount",
    "Buffer_DecreaseExternalReferenceCount",
)
# PJRT_HostBufferSemantics: kImmutableOnlyDuringCall, kImmutableZeroCopy and kMutableZeroCopy.
_COPY_DURING_CALL, _SHARE, _GIVE = 0, 2, 3


def transfer(
    client: Client,
    host: HostArray,
    device: Device,
    memory: Memory | None,
    *,
    share: bool,
    writable: bool = False,
    layout: Layout | None = None,
    shape: tuple[int, ...] | None = None,
) -> Buffer:
    """Make a buffer of host memory, in a memory space of a device (None: its default).

    Args:
        client: owner of the device.
        host: the elements; shareable if `share`.
        device: where to.
        memory: a memory space that the device reaches.
        share: let the plugin use the memory in place; else it copies before this returns.
        writable: of shared memory, that a program to which the buffer is donated may write there.
        layout: what to ask of the plugin; None: its default.
        shape: of the buffer; None: that of `host`.

    Raises:
        UnsupportedDtype: the plugin's API version does not know the type.
        Closed: the client was closed.
        PjrtError: the plugin refused (out of memory, ...).
    """
    client.check_dtype(host.dtype)
    semantics = (_GIVE if writable else _SHARE) if share else _COPY_DURING_CALL
    api, handle = client.api, client.handle
    type = TensorType(host.shape if shape is None else shape, host.dtype)
    strides = None if share else host.byte_strides
    dims = int64s(type.shape)
    wanted, _order = (None, []) if layout is None else layout.encode()
    steps = None if strides is None else int64s(strides)
    handle.pin()
    try:
        recorded = timeline.current
        started = 0 if recorded is None else time.perf_counter_ns()
        made = api.call(
            "Client_BufferFromHostBuffer",
            client=handle.pointer,
            data=host.address or NOWHERE,
            type=host.dtype.code,
            dims=ctypes.addressof(dims),
            num_dims=len(dims),
            byte_strides=None if steps is None else ctypes.addressof(steps),
            num_byte_strides=0 if steps is None else len(steps),
            host_buffer_semantics=semantics,
            # A memory space says more than its device; plugins refuse both.
            device=None if memory else device.pointer,
            memory=memory.pointer if memory else None,
            device_layout=None if wanted is None else ctypes.addressof(wanted),
        )
        if recorded is not None:
            what = "share with device" if share else "copy to device"
            recorded.add(what, started, time.perf_counter_ns(), bytes=type.nbytes)
        order = None if layout is None else client.custom_layout(layout.minor_to_major)
        buffer = Buffer(client, made.buffer, type, device, custom_layout=order, pinned=True)
        buffer.handle.lend(host.owner if share else None, made.done_with_host_buffer)
        buffer.handle.unpin()
        return buffer
    finally:
        handle.unpin()


def shares_host_memory(client: Client) -> bool:
    """Try whether the plugin uses aligned host memory in place, and lets it be read there."""
    api = client.api
    if not all(map(api.has, _NEEDED)):
        return False
    raw = np.zeros(2 * ALIGNMENT, np.uint8)
    start = -raw.__array_interface__["data"][0] % ALIGNMENT
    aligned = describe(raw[start : start + ALIGNMENT])
    try:
        with transfer(client, aligned, client.devices[0], None, share=True) as probe:
            with probe.held() as pointer:
                on_host = api.call("Buffer_IsOnCpu", buffer=pointer).is_on_cpu
            return bool(on_host) and probe.address == aligned.address
    except PjrtError:
        return False
