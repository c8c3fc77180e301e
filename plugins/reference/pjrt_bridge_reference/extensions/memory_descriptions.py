"""MemoryDescriptions: the memory spaces of a device that need not be there."""

from __future__ import annotations

from typing import Any

from pjrt_bridge.abi.extension_structs import by_name
from pjrt_bridge.abi.implement import Implementation
from pjrt_bridge.abi.implementation_objects import Keep, Objects
from pjrt_bridge_reference.device import Description
from pjrt_bridge_reference.memory import KINDS
from pjrt_bridge_reference.slots import OBJECTS, Slots

SLOTS = Slots()

# All devices have the same kinds of memory, so these few descriptions are shared by all.
_DESCRIPTIONS = Objects()
_POINTERS = [_DESCRIPTIONS.add(kind) for kind in KINDS]
_KEEP = Keep()
_LIST = _KEEP.pointers(_POINTERS)
_TEXTS = {kind: _KEEP.text(kind) for kind in KINDS}


def add_to(table: Implementation) -> None:
    """Put the extension into a table's chain."""
    table.add_extension(by_name("MemoryDescriptions"), SLOTS)


@SLOTS.implements("DeviceDescription_MemoryDescriptions")
def _memory_descriptions(args: Any) -> None:
    OBJECTS.get(args.device_description, Description)
    args.memory_descriptions, args.num_memory_descriptions = _LIST, len(_POINTERS)
    args.default_memory_index = 0


@SLOTS.implements("MemoryDescription_Kind")
def _kind(args: Any) -> None:
    kind = _DESCRIPTIONS.get(args.memory_description, str)
    args.kind, args.kind_size = _TEXTS[kind]
    args.kind_id = KINDS.index(kind)
