"""PJRT_Memory: the memory spaces of a device, and the blocks of memory that are taken from them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from pjrt_bridge.abi.implementation_objects import Keep, Status
from pjrt_bridge.errors import ErrorCode
from pjrt_bridge_reference.event import Event
from pjrt_bridge_reference.slots import OBJECTS, Slots
from pjrt_bridge_reference.worker import Worker

SLOTS = Slots()

ALIGNMENT = 64
"""Bytes: what device memory has, and what host memory needs to be used in its place."""

DEVICE, PINNED_HOST = "device", "pinned_host"
"""Kinds of memory spaces, spelled as frameworks know them."""

KINDS = (DEVICE, PINNED_HOST)


class Block:
    """Bytes of memory, until `free`.

    Attributes:
        address: of the first byte.
        writable: a program that gets the block by donation may write to it.
    """

    def __init__(self, address: int, *, writable: bool, on_free: Callable[[], None]) -> None:
        self.address = address
        self.writable = writable
        self._on_free = on_free

    def free(self) -> None:
        """Give the bytes back; the block is used no more."""
        self._on_free()


class Storage:
    """The block of one buffer, and the work that uses it: freed when the last use has ended.

    Attributes:
        unused: ends with the last use.
    """

    def __init__(self, block: Block) -> None:
        self.unused = Event()
        self._block: Block | None = block
        self._uses = 1
        self._lock = threading.Lock()

    def use(self) -> None:
        """Begin to use the memory."""
        with self._lock:
            self._uses += 1

    def release(self) -> None:
        """End one use; the first one is the buffer's own."""
        with self._lock:
            self._uses -= 1
            if self._uses:
                return
            block, self._block = self._block, None
        if block is not None:
            block.free()
        self.unused.end()

    def give_away(self) -> Block:
        """The block, for another storage; a writer waits for `unused` first."""
        with self._lock:
            assert self._block is not None
            block, self._block = self._block, None
        return block


class Memory:
    """One memory space of one device.

    Attributes:
        id: unique within the client.
        kind: `DEVICE` or `PINNED_HOST`.
        on_host: callers may read and write it in place.
        device_id: global id of the device that reaches it.
        device_pointer: to that device.
        worker: runs that device's work.
        limit: bytes that it has, or None.
        in_use, peak, allocations, largest: statistics, in bytes but for the number of allocations.
    """

    def __init__(
        self,
        id: int,
        kind: str,
        device_id: int,
        device_pointer: int,
        worker: Worker,
        *,
        on_host: bool,
        limit: int | None,
    ) -> None:
        self.id = id
        self.kind = kind
        self.device_id = device_id
        self.device_pointer = device_pointer
        self.worker = worker
        self.on_host = on_host
        self.limit = limit
        self.in_use = self.peak = self.allocations = self.largest = 0
        self._lock = threading.Lock()
        self.keep = Keep()
        self.kind_text = self.keep.text(kind)
        self.text = self.keep.text(f"ReferenceMemory(id={id}, kind={kind})")
        self.pointer = OBJECTS.add(self)
        self.devices = self.keep.pointers([device_pointer])

    def allocate(self, size: int) -> Block:
        """A block of this memory, with whatever was in it before.

        Raises:
            Status: RESOURCE_EXHAUSTED.
        """
        with self._lock:
            if self.limit is not None and self.in_use + size > self.limit:
                raise self._exhausted(size)
            try:
                memory = np.empty(size + ALIGNMENT, np.uint8)
            except MemoryError:
                raise self._exhausted(size) from None
            self.in_use += size
            self.peak = max(self.peak, self.in_use)
            self.allocations += 1
            self.largest = max(self.largest, size)
        start = memory.__array_interface__["data"][0]

        def free(memory: Any = memory) -> None:
            with self._lock:
                self.in_use -= size

        return Block(start + -start % ALIGNMENT, writable=True, on_free=free)

    def _exhausted(self, size: int) -> Status:
        limit = "the host's" if self.limit is None else self.limit
        return Status(
            ErrorCode.RESOURCE_EXHAUSTED,
            f"out of memory: {size} bytes in {self.kind} memory of device {self.device_id}, "
            f"where {self.in_use} of {limit} bytes are in use",
        )


@SLOTS.implements("Memory_Id")
def _id(args: Any) -> None:
    args.id = OBJECTS.get(args.memory, Memory).id


@SLOTS.implements("Memory_Kind")
def _kind(args: Any) -> None:
    args.kind, args.kind_size = OBJECTS.get(args.memory, Memory).kind_text


@SLOTS.implements("Memory_Kind_Id")
def _kind_id(args: Any) -> None:
    args.kind_id = KINDS.index(OBJECTS.get(args.memory, Memory).kind)


@SLOTS.implements("Memory_DebugString")
def _debug_string(args: Any) -> None:
    args.debug_string, args.debug_string_size = OBJECTS.get(args.memory, Memory).text


@SLOTS.implements("Memory_ToString")
def _to_string(args: Any) -> None:
    args.to_string, args.to_string_size = OBJECTS.get(args.memory, Memory).text


@SLOTS.implements("Memory_AddressableByDevices")
def _addressable_by_devices(args: Any) -> None:
    args.devices, args.num_devices = OBJECTS.get(args.memory, Memory).devices, 1
