"""The CPU plugin with another extension in front of its chain, made of Python functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pjrt_bridge.abi.extension_structs import ExtensionTable
from pjrt_bridge.abi.functions import FIRST_OFFSET
from pjrt_bridge.abi.implement import Implementation
from pjrt_bridge.abi.implementation_objects import Keep
from pjrt_bridge.runtime import Client, Plugin


def offering(
    plugin: Plugin,
    table: ExtensionTable,
    functions: Mapping[str, Callable[[Any], int | None]],
    *,
    struct_size: int | None = None,
    slots: Mapping[str, int | None] | None = None,
) -> Client:
    """A client whose plugin offers an extension.

    Args:
        plugin: what stands behind it.
        table: the extension.
        functions: those that are filled; other slots are empty.
        struct_size: what the extension states; by default its full size.
        slots: addresses for slots.
    """
    keep = Keep()
    extension = table.struct.new(type=table.type, next=plugin.api.extension_start)
    extension.struct_size = table.struct.size if struct_size is None else struct_size
    implementation = Implementation(
        {},
        base=plugin.api.address,
        version=plugin.api.version,
        slots=(plugin.api.struct_size - FIRST_OFFSET) // 8,
        extension_start=keep.struct(extension),
    )
    for name, function in functions.items():
        args = table.functions[name]
        assert args is not None
        setattr(extension, name, implementation.function(args, function))
    for name, address in (slots or {}).items():
        setattr(extension, name, address)
    made = Plugin.from_address(
        implementation.address, name="offering", keepalive=(implementation, keep, plugin)
    )
    return Client(made, {"cpu_device_count": 1})
