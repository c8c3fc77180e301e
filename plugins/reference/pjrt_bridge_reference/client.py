"""PJRT_Client: devices, and the end of everything that belongs to them."""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections.abc import Sequence
from typing import Any

from pjrt_bridge.abi.implementation_objects import Keep, Status
from pjrt_bridge.abi.values import NamedValue
from pjrt_bridge.errors import ErrorCode
from pjrt_bridge_reference.caller_arguments import address, invalid, options, unimplemented
from pjrt_bridge_reference.device import AnyDevice, Device
from pjrt_bridge_reference.event import Event
from pjrt_bridge_reference.memory import Memory
from pjrt_bridge_reference.processes import Processes
from pjrt_bridge_reference.slots import OBJECTS, Slots
from pjrt_bridge_reference.store import Store
from pjrt_bridge_reference.topology import Topology, check_device_count
from pjrt_bridge_reference.version import OPTIONS, PLATFORM, PLATFORM_VERSION

SLOTS = Slots()

_PROCESS_TIMEOUT_MS = 20_000


class Client:
    """The devices of one caller.

    Attributes:
        processes: this process, and the others that the client spans.
        all_devices: those of all processes, by their ids.
        devices: those of this process.
        latency: seconds by which each execution is delayed.
        alive: not destroyed.
        donating: held while arguments are checked and donated: one execution gets a buffer.
    """

    def __init__(self, given: dict[str, NamedValue], processes: Processes) -> None:
        count, latency, limit = (
            given.get("device_count", 1),
            given.get("latency_ms", 0),
            given.get("memory_limit"),
        )
        assert isinstance(count, int)
        assert isinstance(latency, int)
        assert limit is None or isinstance(limit, int)
        check_device_count(count)
        if latency < 0 or (limit is not None and limit < 0):
            raise invalid("create_options: latency_ms and memory_limit must not be negative")
        self.latency = latency / 1000
        self.alive = True
        self.donating = threading.Lock()
        self._promises: weakref.WeakSet[Event] = weakref.WeakSet()
        self.processes = processes
        self.topology = Topology(processes.device_counts(count), owned=True)
        self.devices: list[Device] = []
        self.all_devices: list[AnyDevice] = []
        for description in self.topology.descriptions:
            if description.process != processes.rank:
                self.all_devices.append(AnyDevice(description))
                continue
            device = Device(
                description,
                len(self.devices),
                host_memory=bool(given.get("host_memory", False)),
                limit=limit,
            )
            self.devices.append(device)
            self.all_devices.append(device)
        memories = [memory for device in self.devices for memory in device.memories]
        self.num_memories = len(memories)
        self.keep = Keep()
        self.platform_name = self.keep.text(PLATFORM)
        self.platform_version = self.keep.text(PLATFORM_VERSION)
        self.device_pointers = self.keep.pointers([device.pointer for device in self.devices])
        self.all_device_pointers = self.keep.pointers([each.pointer for each in self.all_devices])
        self.memory_pointers = self.keep.pointers([memory.pointer for memory in memories])

    def device(self, pointer: int | None) -> Device:
        """The device behind a pointer, if it is one of this client's and of this process.

        Raises:
            Status: INVALID_ARGUMENT.
        """
        device = OBJECTS.get(pointer, Device)
        if device not in self.devices:
            raise invalid(f"device {device.id} belongs to another client")
        return device

    def memory(self, pointer: int | None) -> Memory:
        """The memory space behind a pointer, if it is one of this client's.

        Raises:
            Status: INVALID_ARGUMENT.
        """
        memory = OBJECTS.get(pointer, Memory)
        if not any(memory in device.memories for device in self.devices):
            raise invalid(f"memory {memory.id} belongs to another client")
        return memory

    def place(self, device: int | None, memory: int | None) -> Memory:
        """Where new data go: to a memory space, or the default one of a device.

        Raises:
            Status: INVALID_ARGUMENT; neither is given, or one of another client.
        """
        if memory:
            return self.memory(memory)
        if not device:
            raise invalid("neither a device nor a memory space is given")
        return self.device(device).memories[0]

    def check_alive(self) -> None:
        """Refuse work for a client that is gone.

        Raises:
            Status: FAILED_PRECONDITION.
        """
        if not self.alive:
            raise Status(ErrorCode.FAILED_PRECONDITION, "its client was destroyed")

    def promise(self) -> Event:
        """An event that the caller of the plugin ends, by giving data say, or the client's end."""
        event = Event()
        self._promises.add(event)
        return event

    def destroy(self) -> None:
        """Do what was begun, then make the pointers to devices and memories invalid.

        Buffers and executables of the client stay objects until each is destroyed; they can be
        used no more.
        """
        self.alive = False
        # A worker that waits for values that cannot come any more would never end.
        for event in list(self._promises):
            event.end(Status(ErrorCode.CANCELLED, "the client was destroyed"))
        self.processes.close()
        for device in self.devices:
            device.worker.close()
        for each in self.all_devices:
            each.forget()
        self.topology.forget()


def _client(args: Any) -> Client:
    return OBJECTS.get(args.client, Client)


@SLOTS.implements("Client_Create")
def _create(args: Any) -> None:
    given = options(args.create_options, args.num_options, OPTIONS, "create_options")
    args.client = OBJECTS.add(Client(given, _processes(given, args)))


def _processes(given: dict[str, NamedValue], args: Any) -> Processes:
    rank, count, timeout = (
        given.get("node_id", 0),
        given.get("num_nodes", 1),
        given.get("process_timeout_ms", _PROCESS_TIMEOUT_MS),
    )
    assert isinstance(rank, int)
    assert isinstance(count, int)
    assert isinstance(timeout, int)
    return Processes(rank, count, Store(args) if count > 1 else None, timeout / 1000)


@SLOTS.implements("Client_Destroy")
def _destroy(args: Any) -> None:
    if args.client:
        OBJECTS.remove(args.client, Client).destroy()


@SLOTS.implements("Client_PlatformName")
def _platform_name(args: Any) -> None:
    args.platform_name, args.platform_name_size = _client(args).platform_name


@SLOTS.implements("Client_PlatformVersion")
def _platform_version(args: Any) -> None:
    args.platform_version, args.platform_version_size = _client(args).platform_version


@SLOTS.implements("Client_ProcessIndex")
def _process_index(args: Any) -> None:
    args.process_index = _client(args).processes.rank


@SLOTS.implements("Client_Devices")
def _devices(args: Any) -> None:
    client = _client(args)
    args.devices, args.num_devices = client.all_device_pointers, len(client.all_devices)


@SLOTS.implements("Client_AddressableDevices")
def _addressable_devices(args: Any) -> None:
    client = _client(args)
    args.addressable_devices = client.device_pointers
    args.num_addressable_devices = len(client.devices)


@SLOTS.implements("Client_LookupDevice")
def _lookup_device(args: Any) -> None:
    args.device = _by_id(_client(args).all_devices, args.id)


@SLOTS.implements("Client_LookupAddressableDevice")
def _lookup_addressable_device(args: Any) -> None:
    args.addressable_device = _by_id(_client(args).devices, args.local_hardware_id)


def _by_id(devices: Sequence[AnyDevice], id: int) -> int:
    if not 0 <= id < len(devices):
        raise invalid(f"there is no device {id}; the client has {len(devices)}")
    return devices[id].pointer


@SLOTS.implements("Client_AddressableMemories")
def _addressable_memories(args: Any) -> None:
    client = _client(args)
    args.addressable_memories = client.memory_pointers
    args.num_addressable_memories = client.num_memories


@SLOTS.implements("Client_TopologyDescription")
def _topology_description(args: Any) -> None:
    args.topology = _client(args).topology.pointer


@SLOTS.implements("Client_DefaultDeviceAssignment")
def _default_device_assignment(args: Any) -> None:
    client = _client(args)
    replicas, partitions = args.num_replicas, args.num_partitions
    if replicas < 1 or partitions < 1:
        raise invalid(f"an assignment of {replicas} replicas of {partitions} partitions")
    needed = replicas * partitions
    if needed > len(client.all_devices) or needed > args.default_assignment_size:
        raise invalid(
            f"an assignment of {needed} devices; there are {len(client.all_devices)}, and room for "
            f"{args.default_assignment_size}"
        )
    array = address(args.default_assignment, "default_assignment")
    (ctypes.c_int * needed).from_address(array)[:] = range(needed)


@SLOTS.implements("Client_DmaMap")
def _dma_map(args: Any) -> None:
    _client(args)
    raise unimplemented("PJRT_Client_DmaMap: an interpreter has no DMA")


@SLOTS.implements("Client_DmaUnmap")
def _dma_unmap(args: Any) -> None:
    _client(args)
    raise unimplemented("PJRT_Client_DmaUnmap: an interpreter has no DMA")


@SLOTS.implements("Client_UpdateGlobalProcessInfo")
def _update_global_process_info(args: Any) -> None:
    _client(args)
    raise unimplemented("PJRT_Client_UpdateGlobalProcessInfo: processes tell each other")
