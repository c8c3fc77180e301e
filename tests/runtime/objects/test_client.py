"""Clients: options, identity, devices, memory spaces, closing."""

from typing import Any

import pytest

from pjrt_bridge.errors import BufferUnavailable, Closed, DataError, OptionError, Unimplemented
from pjrt_bridge.runtime import Client, Plugin, live_handles
from pjrt_bridge.runtime.core.create_options import OPTION_TYPES, check_client_options
from tests import programs
from tests.conftest import Census


@pytest.fixture(scope="module")
def strict(plugin: Plugin) -> Plugin:
    """The plugin, with its options declared."""
    return Plugin.from_address(
        plugin.api.address, name="strict", option_types={"cpu_device_count": int}
    )


@pytest.fixture(scope="module")
def lenient(plugin: Plugin) -> Plugin:
    """The plugin, without a declaration."""
    return Plugin.from_address(plugin.api.address, name="lenient")


def test_one_client_for_the_same_options(plugin: Plugin, strict: Plugin) -> None:
    first = plugin.client({"cpu_device_count": 1})
    assert plugin.client({"cpu_device_count": 1}) is first
    assert plugin.client({"cpu_device_count": 2}) is not first
    assert strict.client({"cpu_device_count": 1}) is not first


def test_lists_and_tuples_are_one_option(lenient: Plugin) -> None:
    first = lenient.client({"cpu_device_count": 1, "visible_devices": [0]})
    assert lenient.client({"visible_devices": (0,), "cpu_device_count": 1}) is first
    assert lenient.client({"cpu_device_count": 1, "visible_devices": [0, 1]}) is not first


def test_the_constructor_makes_a_new_client(
    no_leaks: Census, plugin: Plugin, client: Client
) -> None:
    with Client(plugin, {"cpu_device_count": 1}) as other:
        assert other is not client
        assert not other.closed
    assert other.closed
    assert "closed" in repr(other)


def test_a_closed_client_is_replaced(lenient: Plugin) -> None:
    first = lenient.client({"cpu_device_count": 3})
    first.close()
    first.close()
    second = lenient.client({"cpu_device_count": 3})
    assert second is not first
    assert len(second.devices) == 3
    second.close()


@pytest.mark.parametrize("count", [0, -1, 4097, 1 << 62])
def test_a_device_count_that_leaves_no_device(plugin: Plugin, count: int) -> None:
    with pytest.raises(OptionError, match=f"found {count}, expected 1 to 4096"):
        plugin.client({"cpu_device_count": count})


@pytest.mark.parametrize("value", ["two", 2.0, True, None, [2], {}, b"2"])
def test_a_value_of_the_wrong_type(lenient: Plugin, strict: Plugin, value: object) -> None:
    for plugin in (lenient, strict):
        with pytest.raises(OptionError, match=r"'cpu_device_count'.*expected int"):
            plugin.client({"cpu_device_count": value})


@pytest.mark.parametrize("name", OPTION_TYPES)
def test_every_known_option_is_checked(lenient: Plugin, name: str) -> None:
    with pytest.raises(OptionError, match=f"'{name}'"):
        lenient.client({name: object()})


def test_an_unknown_option(strict: Plugin, lenient: Plugin) -> None:
    with pytest.raises(OptionError, match=r"no option 'cpu_devices'; it declares: cpu_device_coun"):
        strict.client({"cpu_devices": 1})
    # Without a declaration only the plugin knows, and this one takes every name.
    assert lenient.client({"cpu_device_count": 1, "colour": "red"}).options["colour"] == "red"


@pytest.mark.parametrize(
    "value", [None, object(), {"a": 1}, ["a"], [1.5], [1 << 63], 1 << 63, b"x", "\ud800"]
)
def test_an_undeclared_option_of_an_impossible_value(lenient: Plugin, value: object) -> None:
    with pytest.raises(OptionError, match="colour"):
        lenient.client({"cpu_device_count": 1, "colour": value})


@pytest.mark.parametrize("options", [[("cpu_device_count", 1)], 1, "cpu_device_count"])
def test_options_that_are_no_mapping(plugin: Plugin, options: Any) -> None:
    with pytest.raises(OptionError, match="expected a mapping"):
        plugin.client(options)
    with pytest.raises(OptionError, match="names are texts"):
        plugin.client({1: 1})  # type: ignore[dict-item]


def test_ints_become_floats_where_floats_are_wanted() -> None:
    checked = check_client_options({"memory_fraction": 1}, None, plugin="gpu")
    assert repr(checked) == "{'memory_fraction': 1.0}"


def test_devices(pair: Client) -> None:
    assert [device.id for device in pair.devices] == [0, 1]
    assert pair.num_devices == 2
    first, second = pair.devices
    assert (first.kind, first.process_index, first.local_hardware_id) == ("cpu", 0, 0)
    assert second.local_hardware_id == 1
    assert first.description == "CpuDevice(id=0)"
    assert dict(first.attributes) == {}
    assert repr(second) == "<Device 1 'cpu'>"
    assert pair.device(1) is second
    with pytest.raises(DataError, match=r"no device 2; it has \[0, 1\]"):
        pair.device(2)


def test_memory_spaces(pair: Client) -> None:
    kinds = ["device", "pinned_host", "unpinned_host"]
    assert [memory.kind for memory in pair.memories] == 2 * kinds
    assert len({memory.id for memory in pair.memories}) == 6
    for device in pair.devices:
        assert [memory.kind for memory in device.memories] == kinds
        assert device.default_memory is device.memories[0]
    assert "pinned_host" in repr(pair.memories[1])
    assert pair.memories[1].description


def test_the_platform(client: Client) -> None:
    assert (client.platform_name, client.process_index) == ("cpu", 0)
    assert client.platform == f"cpu {client.platform_version}"
    assert client.shares_host_memory
    assert client.extensions is client.plugin.extensions
    assert repr(client) == "<Client of 'cpu', 1 device>"


def test_statistics_that_the_plugin_does_not_keep(client: Client) -> None:
    with pytest.raises(Unimplemented):
        client.devices[0].memory_stats()


def test_everything_ends_with_its_client(no_leaks: Census, plugin: Plugin) -> None:
    client = Client(plugin, {"cpu_device_count": 1})
    executable = client.compile(programs.ADD)
    blob = executable.serialize()
    buffer = client.put([1.0])
    event = buffer.ready_event()
    client.close()
    with pytest.raises(BufferUnavailable, match=r"f64\[1\].*was deleted with its client"):
        buffer.to_numpy()
    with pytest.raises(Closed, match="executable 'add' was closed"):
        executable.cost()
    for use in (
        event.wait,
        lambda: event.ready,
        lambda: client.put([1.0]),
        lambda: client.compile(programs.ADD),
        lambda: client.deserialize(blob),
        client.devices[0].memory_stats,
    ):
        with pytest.raises(Closed):
            use()


def test_a_dropped_client_ends_after_its_children(plugin: Plugin) -> None:
    census = Census()
    client = Client(plugin, {"cpu_device_count": 1})
    buffer = client.put([1.0, 2.0])
    del client
    assert buffer.to_numpy().tolist() == [1.0, 2.0]
    assert live_handles()["Client"] == census.before["Client"] + 1
    del buffer
    census.check()
