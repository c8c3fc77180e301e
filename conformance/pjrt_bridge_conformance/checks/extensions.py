"""The extension chain: what optional features the plugin offers, and whether they are whole."""

from __future__ import annotations

from pjrt_bridge.abi import chain
from pjrt_bridge.abi.extension_structs import EXTENSIONS, ExtensionTable
from pjrt_bridge.abi.memory import MemoryMap
from pjrt_bridge.abi.structs import STRUCTS
from pjrt_bridge_conformance.check import Group, Needs
from pjrt_bridge_conformance.context import Context
from pjrt_bridge_conformance.expect import distinct, equal, require
from pjrt_bridge_conformance.outcomes import Fail, Unsupported

CHAIN = Group("extensions", needs=Needs.LIBRARY)

_BASE = STRUCTS["PJRT_Extension_Base"].size


@CHAIN.check
def walk(context: Context) -> None:
    """The chain ends, and every link lies in memory and has a possible size."""
    chain.walk(context.plugin.api.extension_start, plugin=context.plugin.name)


@CHAIN.check
def stays(context: Context) -> None:
    """The chain is the same each time."""
    again = chain.walk(context.plugin.api.extension_start, plugin=context.plugin.name)
    equal(again, context.plugin.extensions, "links")


@CHAIN.check
def types(context: Context) -> None:
    """No type occurs twice, and none is negative."""
    found = [link.type for link in context.plugin.extensions]
    distinct(found, "types of extensions")
    require(min(found, default=0) >= 0, f"a type is negative: {found}")


@CHAIN.each(chain.TYPE_NAMES)
def link(context: Context, name: str) -> None:
    """An extension that is offered has code in every slot that its size has room for."""
    found = [one for one in context.plugin.extensions if one.name == name]
    if not found:
        raise Unsupported("not offered")
    for one in found:
        require(one.struct_size > _BASE, f"{one.struct_size} bytes hold no field")
        if one.type in EXTENSIONS:
            _check_slots(one, EXTENSIONS[one.type])


def _check_slots(one: chain.Extension, table: ExtensionTable) -> None:
    memory = MemoryMap.now()
    inside = [slot for slot in table.functions if table.size_needed(slot) <= one.struct_size]
    empty = []
    for slot in inside:
        pointer = one.pointer(table.offset_of(slot))
        if not pointer:
            empty.append(slot)
        elif memory is not None and not memory.allows(pointer, 1, "x"):
            raise Fail(f"{slot} points to {pointer:#x}, which is no code")
    if empty:
        raise Unsupported(f"{len(empty)} of {len(inside)} slots are NULL: {', '.join(empty)}")
