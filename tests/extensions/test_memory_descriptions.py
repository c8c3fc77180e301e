"""Memory spaces by description: the CPU plugin tells none, another plugin tells two."""

from typing import Any

import pytest

from pjrt_bridge.abi.implementation_objects import Keep
from pjrt_bridge.errors import ExtensionUnavailable
from pjrt_bridge.extensions import MemoryDescriptions
from pjrt_bridge.extensions.memory_descriptions import MemoryDescription
from pjrt_bridge.runtime import Client, Plugin
from tests.extensions.offering import offering


def test_the_cpu_plugin_describes_none(pair: Client) -> None:
    memories = pair.extension(MemoryDescriptions)
    for device in (*pair.devices, *pair.topology.devices):
        assert memories.of(device) == ()


@pytest.mark.parametrize("default", [0, 1, 2**64 - 1])
def test_a_plugin_that_describes_two(plugin: Plugin, default: int) -> None:
    keep = Keep()
    kinds = {0x10: keep.text("device"), 0x20: keep.text("pinned_host")}

    def descriptions(args: Any) -> None:
        assert args.device_description
        args.memory_descriptions = keep.pointers(list(kinds))
        args.num_memory_descriptions = len(kinds)
        args.default_memory_index = default

    def kind(args: Any) -> None:
        args.kind, args.kind_size = kinds[args.memory_description]
        args.kind_id = args.memory_description

    functions = {
        "DeviceDescription_MemoryDescriptions": descriptions,
        "MemoryDescription_Kind": kind,
    }
    with offering(plugin, MemoryDescriptions.TABLE, functions) as client:
        assert client.extension(MemoryDescriptions).of(client.devices[0]) == (
            MemoryDescription("device", 0x10, default == 0),
            MemoryDescription("pinned_host", 0x20, default == 1),
        )


def test_a_plugin_that_names_no_kinds(plugin: Plugin) -> None:
    def descriptions(args: Any) -> None:
        args.num_memory_descriptions = 0

    functions = {"DeviceDescription_MemoryDescriptions": descriptions}
    with offering(plugin, MemoryDescriptions.TABLE, functions, struct_size=32) as client:
        memories = client.extension(MemoryDescriptions)
        assert memories.of(client.devices[0]) == ()
        with pytest.raises(ExtensionUnavailable, match="found 32 bytes, needs 40"):
            memories.call("MemoryDescription_Kind", memory_description=1)
