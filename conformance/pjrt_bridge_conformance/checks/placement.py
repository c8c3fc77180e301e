"""Buffers in memory spaces and on devices: placed, copied, moved."""

from __future__ import annotations

import numpy as np

from pjrt_bridge import dtypes
from pjrt_bridge.dtypes import DType
from pjrt_bridge_conformance import raw
from pjrt_bridge_conformance.check import Group
from pjrt_bridge_conformance.checks.data import patterns
from pjrt_bridge_conformance.context import Context
from pjrt_bridge_conformance.expect import equal, require, same
from pjrt_bridge_conformance.outcomes import Unsupported

PLACEMENT = Group("data")

_X = np.arange(24, dtype=np.float32).reshape(4, 6)
_KINDS = ("device", "pinned_host", "unpinned_host")


@PLACEMENT.check
def default_memory(context: Context) -> None:
    """A buffer that was put on a device lives in its default memory space."""
    client = context.client
    raw.need(client.api, "Buffer_Memory", "Device_DefaultMemory")
    for device in client.devices:
        with client.put(_X, device) as buffer:
            equal(buffer.memory, device.default_memory, f"memory of a buffer on {device!r}")


@PLACEMENT.each(_KINDS)
def put_into_memory(context: Context, kind: str) -> None:
    """A buffer can be made in each memory space, and is there."""
    client = context.client
    found = [memory for memory in client.memories if memory.kind == kind]
    if not found:
        raise Unsupported(f"there is no memory space of the kind {kind!r}")
    with client.put(_X, memory=found[0]) as buffer:
        equal(buffer.memory, found[0], "memory")
        same(buffer.to_numpy(), _X, f"a buffer in {kind}")


@PLACEMENT.each(_KINDS)
def copy_to_memory(context: Context, kind: str) -> None:
    """A buffer can be copied to each memory space and back."""
    client = context.client
    device = client.devices[0]
    raw.need(client.api, "Buffer_CopyToMemory")
    found = [memory for memory in device.memories if memory.kind == kind]
    if not found or device.default_memory is None:
        raise Unsupported(f"there is no memory space of the kind {kind!r}")
    there = client.put(_X).copy_to(found[0])
    equal(there.memory, found[0], "memory of the copy")
    back = there.copy_to(device.default_memory)
    same(back.to_numpy(), _X, f"a copy by way of {kind}")


@PLACEMENT.each(dtypes.ALL)
def copy_to_device(context: Context, dtype: DType) -> None:
    """A copy on another device has the same bits."""
    client = context.pair
    x = patterns(dtype, (3, 7))
    copy = client.put(x).copy_to(client.devices[1])
    same(copy.to_numpy(), x, f"{dtype} on another device")
    with copy.held() as pointer:
        place = client.api.call("Buffer_Device", buffer=pointer).device
    equal(place, client.devices[1].pointer, "device of the copy")


@PLACEMENT.check
def copy_to_same_device(context: Context) -> None:
    """A copy on the same device has memory of its own and outlives its original."""
    client = context.client
    original = client.put(_X)
    copy = original.copy_to(client.devices[0])
    copy.block_until_ready()
    if client.api.has("Buffer_OpaqueDeviceMemoryDataPointer"):
        require(copy.address != original.address, "the copy shares its original's memory")
    original.delete()
    same(copy.to_numpy(), _X, "a copy")


@PLACEMENT.check
def copy_of_empty(context: Context) -> None:
    """A buffer without elements can be copied."""
    client = context.client
    empty = np.zeros((3, 0), np.float32)
    same(client.put(empty).copy_to(client.devices[0]).to_numpy(), empty, "a copy of nothing")


@PLACEMENT.check
def copy_while_dropped(context: Context) -> None:
    """The original of a copy may be dropped while the copy is made."""
    client = context.pair
    for number in range(20):
        x = np.full(10_000, number, np.int32)
        copy = client.put(x, copy=True).copy_to(client.devices[1])
        same(copy.to_numpy(), x, f"copy {number}")


@PLACEMENT.check
def every_device(context: Context) -> None:
    """Buffers can be put on every device."""
    client = context.client
    for device in client.devices:
        with client.put(_X, device) as buffer:
            same(buffer.to_numpy(), _X, f"a buffer on {device!r}")
