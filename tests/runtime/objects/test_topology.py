"""Topologies on XLA's CPU plugin, which describes its own devices and no others."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pjrt_bridge import dtypes
from pjrt_bridge.errors import DataError, NotFound, OptionError, Unimplemented
from pjrt_bridge.extensions import FFI, Layouts
from pjrt_bridge.runtime import Client, Device, Plugin, Topology
from pjrt_bridge.stablehlo.types import TensorType
from tests import programs


def test_a_client_describes_all_its_devices(pair: Client) -> None:
    topology = pair.topology
    assert topology is pair.topology
    assert [(one.id, one.kind) for one in topology.devices] == [
        (one.id, one.kind) for one in pair.devices
    ]
    assert not any(isinstance(one, Device) for one in topology.devices)
    assert topology.platform == pair.platform
    assert topology.memory_limit is None


def test_a_clients_topology_ends_with_the_client(plugin: Plugin) -> None:
    client = Client(plugin, {"cpu_device_count": 1})
    topology = client.topology
    topology.close()
    assert not client.closed
    assert client.compile(programs.ADD).signature.parameters
    client.close()


def test_it_compiles_for_its_clients_only(client: Client) -> None:
    with pytest.raises(NotFound, match="PJRT_Compile"):
        client.topology.compile(programs.ADD)


def test_it_knows_no_other_topologies(plugin: Plugin) -> None:
    with pytest.raises(Unimplemented, match="TopologyDescription_Create"):
        plugin.topology("v5e:2x2")


@pytest.mark.parametrize("name", ["", " ", "\n", None, 5, b"v5e:2x2"])
def test_names_that_a_plugin_might_take_for_something(plugin: Plugin, name: Any) -> None:
    with pytest.raises(OptionError, match=r"for a topology, expected a name such as 'v5e:2x2'"):
        plugin.topology(name)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        # The first of them ends a process inside the CUDA plugin.
        ({"target_config": 5}, "'target_config' .* found 5 of type int, expected str"),
        ({"topology": (1, 1, 1)}, "'topology' .* expected str"),
        ({"wrap": "1,1"}, "'wrap' .* expected list"),
        ({"num_slices": True}, "'num_slices' .* found True of type bool, expected int"),
        ({"own": object()}, "'own': found <object"),
    ],
)
def test_options_of_another_type(plugin: Plugin, options: dict[str, Any], said: str) -> None:
    with pytest.raises(OptionError, match=said):
        plugin.topology("x", **options)


def test_extensions_over_a_topology(pair: Client) -> None:
    topology = pair.topology
    layouts = topology.extension(Layouts)
    assert topology.extension(Layouts) is layouts
    assert pair.extension(Layouts) is not layouts
    type = TensorType((3, 4), dtypes.from_numpy(np.dtype("float32")))
    assert (
        layouts.default(type)
        == layouts.topology_default(type)
        == pair.extension(Layouts).default(type)
    )
    with pair.compile(programs.ADD) as executable, pytest.raises(DataError, match="belongs to"):
        layouts.outputs(executable)


def test_what_needs_devices_says_so(client: Client) -> None:
    with pytest.raises(DataError, match=r"FFI needs a client; <Topology 'cpu', 1 device>"):
        client.topology.extension(FFI).client


def test_a_topology_of_another_plugin_is_refused(client: Client, plugin: Plugin) -> None:
    other = Topology.of_client(client)
    other.api = Plugin.from_address(plugin.api.address, name="other").api
    type = TensorType((3,), dtypes.from_numpy(np.dtype("float32")))
    with pytest.raises(DataError, match="belongs to another plugin"):
        client.extension(Layouts).topology_default(type, other)
