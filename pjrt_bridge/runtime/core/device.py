"""Device and Memory: where programs run and where buffers live; and devices that are not there.

All are read once when a client or topology is made and are plain descriptions from then on; the
plugin owns the objects behind them, for as long as the client or topology lives.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pjrt_bridge.abi.api import Api
from pjrt_bridge.abi.values import NamedValue, decode_named_values, free, read_pointers, text
from pjrt_bridge.errors import PjrtError, PluginIncompatible
from pjrt_bridge.runtime.ownership.handles import Handle
from pjrt_bridge.wrong_arguments import checked_methods


@checked_methods
class Memory:
    """A memory space that buffers can live in.

    Attributes:
        id: unique within the client.
        kind: the plugin's name of the kind, such as "device" or "pinned_host".
        description: the plugin's own text.
        pointer: PJRT_Memory.
    """

    def __init__(self, api: Api, pointer: int) -> None:
        self.pointer = pointer
        self.id = int(api.call("Memory_Id", memory=pointer).id)
        kind = api.call("Memory_Kind", memory=pointer)
        self.kind = text(kind.kind, kind.kind_size)
        described = api.call("Memory_ToString", memory=pointer)
        self.description = text(described.to_string, described.to_string_size)

    def __repr__(self) -> str:
        return f"<Memory {self.id} {self.kind!r}>"


@checked_methods
class DeviceDescription:
    """A plugin's description of a device, whether it is present or not.

    Attributes:
        id: global id, unique among all processes.
        kind: the vendor's name of the device, such as "cpu" or "TPU v5 lite".
        process_index: process that the device belongs to.
        attributes: the plugin's description of the device.
        description: the plugin's own text.
        description_pointer: PJRT_DeviceDescription.
    """

    def __init__(self, api: Api, about: int) -> None:
        self.description_pointer = about
        self.id = int(api.call("DeviceDescription_Id", device_description=about).id)
        process = api.call("DeviceDescription_ProcessIndex", device_description=about)
        self.process_index = int(process.process_index)
        kind = api.call("DeviceDescription_Kind", device_description=about)
        self.kind = text(kind.device_kind, kind.device_kind_size)
        described = api.call("DeviceDescription_ToString", device_description=about)
        self.description = text(described.to_string, described.to_string_size)
        self.attributes: Mapping[str, NamedValue] = _described(api, about)

    @staticmethod
    def of_device(api: Api, device: int) -> DeviceDescription:
        """That of a PJRT_Device, which may be one of another process.

        Raises:
            PluginIncompatible: the plugin gave none.
        """
        return DeviceDescription(api, _description(api, device))

    @property
    def memory_limit(self) -> int | None:
        """Bytes of device memory that programs can have; None where the plugin does not tell."""
        found = self.attributes.get("device_memory_bytes_limit")
        return found if isinstance(found, int) and found > 0 else None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id} {self.kind!r}>"


def memory_limit(devices: Sequence[DeviceDescription]) -> int | None:
    """Bytes that a program can have on each of some devices; None where the plugin is silent."""
    limits = [device.memory_limit for device in devices]
    told = [limit for limit in limits if limit is not None]
    return min(told) if told and len(told) == len(limits) else None


@checked_methods
class Device(DeviceDescription):
    """A device that programs can run on.

    Attributes:
        local_hardware_id: number of the hardware, -1 where there is none.
        attributes: the plugin's description of the device, and of its state where the plugin
            tells that too (PJRT API 0.92).
        memories: memory spaces that the device reaches.
        default_memory: where buffers go unless said otherwise; None where the plugin has no say.
        pointer: PJRT_Device.
    """

    def __init__(self, client: Handle, pointer: int, memories: Mapping[int, Memory]) -> None:
        api = client.api
        self._client = client
        self.pointer = pointer
        super().__init__(api, _description(api, pointer))
        self.attributes = {**self.attributes, **_attributes(api, pointer)}
        self.local_hardware_id = int(
            api.call("Device_LocalHardwareId", device=pointer).local_hardware_id
        )
        self.memories, self.default_memory = _memories(api, pointer, memories)

    def memory_stats(self) -> dict[str, int]:
        """Bytes in use, limits and the like, as far as the plugin states them.

        Raises:
            Unimplemented: the plugin keeps no such statistics.
            Closed: the client was closed.
        """
        with self._client.held():
            stats = self._client.api.call("Device_MemoryStats", device=self.pointer)
        names = [name for name in _STATS if getattr(stats, f"{name}_is_set", True)]
        return {name: int(getattr(stats, name)) for name in names}


_STATS = (
    "bytes_in_use",
    "peak_bytes_in_use",
    "num_allocs",
    "largest_alloc_size",
    "bytes_limit",
    "bytes_reserved",
    "peak_bytes_reserved",
    "bytes_reservable_limit",
    "largest_free_block_bytes",
    "pool_bytes",
    "peak_pool_bytes",
)


def _description(api: Api, device: int) -> int:
    about = int(api.call("Device_GetDescription", device=device).device_description or 0)
    if not about:
        raise PluginIncompatible(
            f"plugin {api.plugin!r}: Device_GetDescription gave NULL for a device"
        )
    return about


def _described(api: Api, description: int) -> dict[str, NamedValue]:
    found = api.call("DeviceDescription_Attributes", device_description=description)
    return decode_named_values(found.attributes, found.num_attributes)


def _attributes(api: Api, device: int) -> dict[str, NamedValue]:
    if not api.has("Device_GetAttributes"):
        return {}
    found = api.call("Device_GetAttributes", device=device)
    attributes = decode_named_values(found.attributes, found.num_attributes)
    if found.attributes_deleter:
        free(found.attributes_deleter, found.device_attributes)
    return attributes


def _memories(
    api: Api, device: int, known: Mapping[int, Memory]
) -> tuple[tuple[Memory, ...], Memory | None]:
    try:
        listed = api.call("Device_AddressableMemories", device=device)
        default = api.call("Device_DefaultMemory", device=device).memory
    except PjrtError:
        return (), None
    pointers = read_pointers(listed.memories, listed.num_memories)
    return tuple(known[pointer] for pointer in pointers if pointer in known), known.get(default)
