"""Host memory into a plugin's buffers: shared with the plugin, or copied by it."""

from __future__ import annotations

import ctypes
import time

from pjrt_bridge import timeline
from pjrt_bridge.abi.values import int64s
from pjrt_bridge.runtime.core.client_core import ClientCore
from pjrt_bridge.runtime.core.device import Device, Memory
from pjrt_bridge.runtime.core.layout import Layout
from pjrt_bridge.runtime.ownership.buffers import BufferHandle
from pjrt_bridge.runtime.ownership.waiting import Completion
from pjrt_bridge.runtime.transfers.host import NOWHERE, HostArray
from pjrt_bridge.stablehlo.types import TensorType

# PJRT_HostBufferSemantics: kImmutableOnlyDuringCall, kImmutableZeroCopy and kMutableZeroCopy.
_COPY_DURING_CALL, _SHARE, _GIVE = 0, 2, 3


def transfer(
    client: ClientCore,
    buffer: BufferHandle,
    host: HostArray,
    type: TensorType,
    device: Device,
    memory: Memory | None = None,
    *,
    share: bool,
    writable: bool = False,
    layout: Layout | None = None,
) -> None:
    """Make a plugin's buffer of host memory.

    Args:
        client: owner of the device.
        buffer: owns the buffer from now on.
        host: the elements; shareable if `share`.
        type: of the buffer; its shape is another than that of `host` where the elements are in the
            order of a layout.
        device: where to.
        memory: a memory space that the device reaches; None: its default.
        share: let the plugin use the memory in place; else it copies before this returns.
        writable: of shared memory, that a program to which the buffer is donated may write there.
        layout: what to ask of the plugin; None: its default.

    Raises:
        UnsupportedDtype: the plugin's API version does not know the type.
        Closed: the client was closed.
        PjrtError: the plugin refused (out of memory, ...).
    """
    client.check_dtype(host.dtype)
    semantics = (_GIVE if writable else _SHARE) if share else _COPY_DURING_CALL
    handle = client.handle
    strides = None if share else host.byte_strides
    dims = int64s(type.shape)
    wanted, _order = (None, []) if layout is None else layout.encode()
    steps = None if strides is None else int64s(strides)
    handle.pin()
    try:
        recorded = timeline.current
        started = 0 if recorded is None else time.perf_counter_ns()
        buffer.memory, buffer.done = host.owner if share else None, Completion()
        client.api.call_for(
            buffer,
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
        buffer.own()
        if recorded is not None:
            what = "share with device" if share else "copy to device"
            recorded.add(what, started, time.perf_counter_ns(), bytes=type.nbytes)
    finally:
        handle.unpin()
