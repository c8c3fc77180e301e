"""Operations of plugins, clients and devices."""

from __future__ import annotations

from typing import Any

from pjrt_bridge.runtime import Client, Plugin
from tests import programs
from tests.faults.operations.registry import Act, numbers, operation
from tests.faults.world import World


@operation()
def plugin__load(world: World) -> Act:
    def act() -> Any:
        plugin = Plugin.from_address(world.table.address, name="faulty", keepalive=world.table)
        return dict(plugin.attributes), plugin.stablehlo_version, plugin.extensions

    return act


def _described(client: Client) -> Any:
    devices = [
        (device.id, device.kind, device.process_index, device.local_hardware_id, device.description)
        for device in client.devices
    ]
    memories = [(memory.id, memory.kind, memory.description) for memory in client.memories]
    reached = [[memory.id for memory in device.memories] for device in client.devices]
    return (
        client.platform_name,
        client.platform_version,
        client.num_devices,
        devices,
        memories,
        reached,
    )


@operation()
def client__create(world: World) -> Act:
    plugin = world.plugin

    def act() -> Any:
        with Client(plugin, world.options(2)) as client:
            return _described(client)

    return act


@operation("newer")
def client__create_newer(world: World) -> Act:
    plugin = world.plugin

    def act() -> Any:
        with Client(plugin, world.options(1)) as client:
            return _described(client), dict(client.devices[0].attributes)

    return act


@operation()
def client__topology(world: World) -> Act:
    plugin = world.plugin

    def act() -> Any:
        with Client(plugin, world.options(2)) as client:
            topology = client.topology
            devices = [(one.id, one.kind, one.description) for one in topology.devices]
            return topology.platform, devices, dict(topology.attributes), len(topology.serialize())

    return act


@operation()
def client__use_once(world: World) -> Act:
    """All that a program needs in its life, from the client on."""
    plugin, array = world.plugin, world.array

    def act() -> Any:
        with Client(plugin, world.options(1)) as client:
            (result,) = client.compile(programs.ADD)(array, array)
            return numbers(result)

    return act


@operation()
def device__memory_stats(world: World) -> Act:
    device = world.client.devices[0]

    def act() -> Any:
        try:
            # Numbers of what else is there are those of the moment.
            return sorted(device.memory_stats())
        except Exception as error:
            # The real plugin keeps none.
            if "injected fault" in str(error) or "misuse" in str(error):
                raise
            return type(error).__name__

    return act
