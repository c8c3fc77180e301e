"""What the plugin says about platform, devices and memory spaces agrees with itself."""

from __future__ import annotations

from typing import Any

from pjrt_bridge.abi.values import read_pointers, text
from pjrt_bridge.runtime import Client
from pjrt_bridge_conformance import raw
from pjrt_bridge_conformance.check import Group
from pjrt_bridge_conformance.context import Context
from pjrt_bridge_conformance.expect import distinct, equal, refused, require, works

DEVICES = Group("devices")


def _ask(context: Context, function: str, **values: Any) -> Any:
    raw.need(context.client.api, function)
    return context.client.api.call(function, **values)


def _all(client: Client) -> tuple[int, ...]:
    raw.need(client.api, "Client_Devices")
    found = client.api.call("Client_Devices", client=client.handle.pointer)
    return read_pointers(found.devices, found.num_devices)


@DEVICES.check
def platform(context: Context) -> None:
    """The platform has a name and a version, which stay the same."""
    client = context.client
    require(client.platform_name, "the platform has no name")
    require(client.platform_version, "the platform has no version")
    again = _ask(context, "Client_PlatformName", client=client.handle.pointer)
    equal(text(again.platform_name, again.platform_name_size), client.platform_name, "name")


@DEVICES.check
def addressable(context: Context) -> None:
    """The devices of this process are among those of all processes, and say so."""
    client = context.client
    everywhere = _all(client)
    distinct(everywhere, "devices")
    for device in client.devices:
        require(device.pointer in everywhere, f"{device!r} is not among PJRT_Client_Devices")
        found = _ask(context, "Device_IsAddressable", device=device.pointer)
        equal(found.is_addressable, True, f"is_addressable of {device!r}")


@DEVICES.check
def ids(context: Context) -> None:
    """Devices have ids of their own, and belong to processes that exist."""
    client = context.client
    distinct([device.id for device in client.devices], "ids of devices")
    require(client.process_index >= 0, f"process_index is {client.process_index}")
    for device in client.devices:
        equal(device.process_index, client.process_index, f"process of {device!r}")


@DEVICES.check
def lookup(context: Context) -> None:
    """Looking up a device by its id, and by its hardware id, gives that device."""
    client = context.client
    for device in client.devices:
        found = _ask(context, "Client_LookupDevice", client=client.handle.pointer, id=device.id)
        equal(found.device, device.pointer, f"device with the id {device.id}")
        if device.local_hardware_id >= 0:
            local = _ask(
                context,
                "Client_LookupAddressableDevice",
                client=client.handle.pointer,
                local_hardware_id=device.local_hardware_id,
            )
            equal(local.addressable_device, device.pointer, f"hardware {device.local_hardware_id}")


@DEVICES.each(["Client_LookupDevice", "Client_LookupAddressableDevice"])
def lookup_nothing(context: Context, function: str) -> None:
    """Looking up a device that does not exist is a clean error."""
    client = context.client
    raw.need(client.api, function)
    field = "id" if function == "Client_LookupDevice" else "local_hardware_id"
    for number in (999_999, -7):
        refused(
            lambda number=number: client.api.call(  # type: ignore[misc]
                function, client=client.handle.pointer, **{field: number}
            ),
            f"{function} of {number}",
        )
    works(client, "a device was looked up that does not exist")


@DEVICES.check
def descriptions(context: Context) -> None:
    """Every device has a kind and texts that describe it."""
    for device in context.client.devices:
        require(device.kind, f"device {device.id} has no kind")
        require(device.description, f"device {device.id} has no description")
        about = _ask(context, "Device_GetDescription", device=device.pointer).device_description
        debug = _ask(context, "DeviceDescription_DebugString", device_description=about)
        require(
            text(debug.debug_string, debug.debug_string_size), f"no debug string of {device.id}"
        )


@DEVICES.check
def memories(context: Context) -> None:
    """Every device reaches its default memory, and every memory space has an id and a kind."""
    client = context.client
    raw.need(client.api, "Device_AddressableMemories", "Device_DefaultMemory")
    distinct([memory.id for memory in client.memories], "ids of memory spaces")
    for memory in client.memories:
        require(memory.kind, f"memory {memory.id} has no kind")
        require(memory.description, f"memory {memory.id} has no description")
    for device in client.devices:
        require(device.memories, f"{device!r} reaches no memory space")
        require(
            device.default_memory in device.memories,
            f"the default memory {device.default_memory!r} of {device!r} is none of its memories",
        )


@DEVICES.check
def memory_devices(context: Context) -> None:
    """A memory space names the devices that reach it: those that name the memory space."""
    client = context.client
    raw.need(client.api, "Device_AddressableMemories")
    for memory in client.memories:
        found = _ask(context, "Memory_AddressableByDevices", memory=memory.pointer)
        listed = set(read_pointers(found.devices, found.num_devices))
        reached = {device.pointer for device in client.devices if memory in device.memories}
        require(reached <= listed, f"{memory!r} leaves out a device that reaches it")


@DEVICES.check
def memory_kind_ids(context: Context) -> None:
    """Memory spaces of one kind have one kind id, and of two kinds two."""
    client = context.client
    raw.need(client.api, "Memory_Kind_Id")
    pairs = {
        (memory.kind, client.api.call("Memory_Kind_Id", memory=memory.pointer).kind_id)
        for memory in client.memories
    }
    equal(len({kind for kind, _ in pairs}), len(pairs), f"kinds with one id each in {pairs}")
    equal(len({number for _, number in pairs}), len(pairs), f"ids with one kind each in {pairs}")


@DEVICES.check
def memory_stats(context: Context) -> None:
    """Statistics of a device's memory are no negative numbers, and the peak is no less than use."""
    stats = context.client.devices[0].memory_stats()
    require(min(stats.values(), default=0) >= 0, f"a number is negative: {stats}")
    if "peak_bytes_in_use" in stats:
        require(stats["peak_bytes_in_use"] >= stats["bytes_in_use"], f"peak below use: {stats}")
