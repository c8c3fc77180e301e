"""Functions that were appended after 0.81, offered by a newer table around the CPU plugin's."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any

import pytest

from pjrt_bridge.abi.functions import FIRST_OFFSET
from pjrt_bridge.abi.values import encode_named_values
from pjrt_bridge.errors import Unimplemented
from pjrt_bridge.runtime import Client, Plugin
from tests import programs
from tests.faults.replaced import Replaced

SLOTS = (1144 - FIRST_OFFSET) // 8


class Extended:
    """The plugin's table with more functions at its end, and what they were called with."""

    def __init__(self, plugin: Plugin) -> None:
        self.freed: list[int] = []
        self._kept: list[object] = []
        self._attributes, keep = encode_named_values({"cores": 2, "busy": True})
        self._kept.append(keep)
        self._deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(self.freed.append)
        self.table = Replaced(
            plugin.api.address,
            {
                "Device_GetAttributes": self._get_attributes,
                "Executable_ParameterMemoryKinds": self._memory_kinds,
            },
            slots=SLOTS,
            version=(0, 114),
        )

    def _get_attributes(self, _: Replaced, args: Any) -> None:
        args.attributes = ctypes.addressof(self._attributes)
        args.num_attributes = 2
        args.device_attributes = 0xA77
        args.attributes_deleter = ctypes.cast(self._deleter, ctypes.c_void_p).value

    def _memory_kinds(self, _: Replaced, args: Any) -> None:
        kinds = (ctypes.c_char_p * 2)(b"device", b"pinned_host")
        sizes = (ctypes.c_size_t * 2)(6, 11)
        self._kept += [kinds, sizes]
        args.num_parameters = 2
        args.memory_kinds = ctypes.addressof(kinds)
        args.memory_kind_sizes = ctypes.addressof(sizes)


@pytest.fixture(scope="module")
def extended(plugin: Plugin) -> Extended:
    return Extended(plugin)


@pytest.fixture(scope="module")
def newer(extended: Extended) -> Iterator[Client]:
    plugin = extended.table.plugin("newer")
    assert plugin.api_version == (0, 114)
    with plugin.client({"cpu_device_count": 1}) as client:
        yield client


def test_a_device_tells_more(newer: Client, extended: Extended, client: Client) -> None:
    assert newer.devices[0].attributes == {**client.devices[0].attributes, "cores": 2, "busy": True}
    assert extended.freed == [0xA77]


def test_an_executable_tells_where_arguments_have_to_be(newer: Client, client: Client) -> None:
    kinds = newer.compile(programs.ADD).parameter_memory_kinds()
    assert kinds == ("device", "pinned_host")
    with pytest.raises(Unimplemented, match="table has 984 bytes"):
        client.compile(programs.ADD).parameter_memory_kinds()
