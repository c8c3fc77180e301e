"""PJRT_DeviceDescription and PJRT_Device."""

from __future__ import annotations

from typing import Any

from pjrt_bridge.abi.implementation_objects import Keep
from pjrt_bridge_reference.memory import DEVICE, PINNED_HOST, Memory
from pjrt_bridge_reference.slots import OBJECTS, Slots
from pjrt_bridge_reference.worker import Worker

SLOTS = Slots()

KIND = "reference"


class Description:
    """The description of a device, which need not be present.

    Attributes:
        id: global id.
        process: number of the process that it belongs to.
        attributes: address and length of its attributes.
    """

    def __init__(self, id: int, process: int = 0) -> None:
        self.id = id
        self.process = process
        self.keep = Keep()
        self.kind = self.keep.text(KIND)
        self.debug_text = self.keep.text(
            f"ReferenceDevice(id={id}, process={process}), an interpreter"
        )
        self.text = self.keep.text(f"ReferenceDevice(id={id})")
        self.attributes = self.keep.named_values({"coords": [id, 0, 0], "interpreter": "StableHLO"})
        self.pointer = OBJECTS.add(self)


class AnyDevice:
    """A device of a client, which may be one of another process.

    Attributes:
        id: global id.
        local_id: number among the devices of its process; -1 where that is another one.
        description: of the device.
        memories: of the device, none where it belongs to another process; buffers go to the first
            unless said otherwise.
    """

    memories: tuple[Memory, ...] = ()
    memory_pointers = 0

    def __init__(self, description: Description, local_id: int = -1) -> None:
        self.id = description.id
        self.local_id = local_id
        self.description = description
        self.pointer = OBJECTS.add(self)

    def forget(self) -> None:
        """Make the pointers to the device and its memories invalid."""
        for memory in self.memories:
            OBJECTS.remove(memory.pointer, Memory)
        OBJECTS.remove(self.pointer, AnyDevice)


class Device(AnyDevice):
    """A device of this process: one worker and two memory spaces.

    Attributes:
        worker: does the device's work.
    """

    def __init__(
        self, description: Description, local_id: int, *, host_memory: bool, limit: int | None
    ) -> None:
        super().__init__(description, local_id)
        self.worker = Worker(f"reference device {self.id}")
        self.memories = (
            self._memory(2 * self.id, DEVICE, on_host=host_memory, limit=limit),
            self._memory(2 * self.id + 1, PINNED_HOST, on_host=True, limit=None),
        )
        self.keep = Keep()
        self.memory_pointers = self.keep.pointers([memory.pointer for memory in self.memories])

    def _memory(self, id: int, kind: str, *, on_host: bool, limit: int | None) -> Memory:
        return Memory(id, kind, self.id, self.pointer, self.worker, on_host=on_host, limit=limit)


def _description(args: Any) -> Description:
    return OBJECTS.get(args.device_description, Description)


@SLOTS.implements("DeviceDescription_Id")
def _id(args: Any) -> None:
    args.id = _description(args).id


@SLOTS.implements("DeviceDescription_ProcessIndex")
def _process_index(args: Any) -> None:
    args.process_index = _description(args).process


@SLOTS.implements("DeviceDescription_Attributes")
def _attributes(args: Any) -> None:
    args.attributes, args.num_attributes = _description(args).attributes


@SLOTS.implements("DeviceDescription_Kind")
def _kind(args: Any) -> None:
    args.device_kind, args.device_kind_size = _description(args).kind


@SLOTS.implements("DeviceDescription_DebugString")
def _debug_string(args: Any) -> None:
    args.debug_string, args.debug_string_size = _description(args).debug_text


@SLOTS.implements("DeviceDescription_ToString")
def _to_string(args: Any) -> None:
    args.to_string, args.to_string_size = _description(args).text


@SLOTS.implements("Device_GetDescription")
def _get_description(args: Any) -> None:
    args.device_description = OBJECTS.get(args.device, AnyDevice).description.pointer


@SLOTS.implements("Device_IsAddressable")
def _is_addressable(args: Any) -> None:
    args.is_addressable = isinstance(OBJECTS.get(args.device, AnyDevice), Device)


@SLOTS.implements("Device_LocalHardwareId")
def _local_hardware_id(args: Any) -> None:
    args.local_hardware_id = OBJECTS.get(args.device, AnyDevice).local_id


@SLOTS.implements("Device_AddressableMemories")
def _addressable_memories(args: Any) -> None:
    device = OBJECTS.get(args.device, AnyDevice)
    args.memories, args.num_memories = device.memory_pointers, len(device.memories)


@SLOTS.implements("Device_DefaultMemory")
def _default_memory(args: Any) -> None:
    args.memory = OBJECTS.get(args.device, Device).memories[0].pointer


@SLOTS.implements("Device_MemoryStats")
def _memory_stats(args: Any) -> None:
    memory = OBJECTS.get(args.device, Device).memories[0]
    args.bytes_in_use = memory.in_use
    args.peak_bytes_in_use, args.peak_bytes_in_use_is_set = memory.peak, True
    args.num_allocs, args.num_allocs_is_set = memory.allocations, True
    args.largest_alloc_size, args.largest_alloc_size_is_set = memory.largest, True
    args.bytes_limit_is_set = memory.limit is not None
    args.bytes_limit = memory.limit or 0
    # What is not known has to be said, too: callers need not clear the struct.
    for name in _UNKNOWN:
        setattr(args, f"{name}_is_set", False)


_UNKNOWN = (
    "bytes_reserved",
    "peak_bytes_reserved",
    "bytes_reservable_limit",
    "largest_free_block_bytes",
    "pool_bytes",
    "peak_pool_bytes",
)
