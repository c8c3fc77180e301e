"""MemoryDescriptions: the memory spaces of a kind of device, also of one that is not there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pjrt_bridge.abi.extension_structs import ExtensionTable, by_name
from pjrt_bridge.abi.values import read_pointers, text
from pjrt_bridge.extensions.base import Accessor
from pjrt_bridge.runtime import DeviceDescription
from pjrt_bridge.wrong_arguments import checked_methods


@dataclass(frozen=True)
class MemoryDescription:
    """A memory space of a device.

    Attributes:
        kind: the plugin's name of the kind, such as "device" or "pinned_host".
        kind_id: the plugin's number of the kind.
        default: buffers go there unless said otherwise.
    """

    kind: str
    kind_id: int
    default: bool


@checked_methods
class MemoryDescriptions(Accessor):
    """Memory spaces by description (pjrt_c_api_memory_descriptions_extension.h 1)."""

    TABLE: ClassVar[ExtensionTable] = by_name("MemoryDescriptions")

    def of(self, device: DeviceDescription) -> tuple[MemoryDescription, ...]:
        """The memory spaces of a device, as far as its description tells; XLA's CPU tells none.

        Args:
            device: of the client or topology.

        Raises:
            ExtensionUnavailable: the plugin does not tell.
        """
        listed = self.call(
            "DeviceDescription_MemoryDescriptions", device_description=device.description_pointer
        )
        default = listed.default_memory_index
        pointers = read_pointers(listed.memory_descriptions, listed.num_memory_descriptions)
        return tuple(
            self._description(pointer, default=index == default)
            for index, pointer in enumerate(pointers)
        )

    def _description(self, pointer: int, *, default: bool) -> MemoryDescription:
        kind = self.call("MemoryDescription_Kind", memory_description=pointer)
        return MemoryDescription(text(kind.kind, kind.kind_size), int(kind.kind_id), default)
