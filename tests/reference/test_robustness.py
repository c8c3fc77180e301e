"""Callers that err get an error with a sentence: no exception on stderr, no crash."""

import ctypes
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pjrt_bridge.abi.api import VOID_FUNCTIONS
from pjrt_bridge.abi.functions import FIRST_OFFSET, FUNCTIONS, SLOTS_0_81
from pjrt_bridge.abi.structs import Struct
from pjrt_bridge.abi.values import free
from pjrt_bridge.errors import Internal, PjrtError
from pjrt_bridge.runtime import Client, Plugin
from pjrt_bridge_reference.slots import OBJECTS
from tests.plugins import run_python

NAMES = list(FUNCTIONS)[:SLOTS_0_81]
# They take no object, and end what NULL stands for: nothing.
HARMLESS = {"Plugin_Initialize", "Plugin_Attributes", "Error_Destroy", "Error_Message"}


def struct(name: str) -> Struct:
    found = FUNCTIONS[name]
    assert found is not None
    return found


def call_raw(plugin: Plugin, name: str, address: int | None) -> int | None:
    slot = FIRST_OFFSET + 8 * NAMES.index(name)
    pointer = ctypes.c_void_p.from_address(plugin.api.address + slot).value
    assert pointer
    prototype = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)
    error: int | None = prototype(pointer)(address)
    return error


@pytest.mark.parametrize("name", NAMES)
def test_no_slot_is_empty_and_nothing_is_no_argument(
    plugin: Plugin, name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    if name in ("Client_Create", "ExecuteContext_Create"):
        return  # Without arguments they make a client, and a context.
    assert refused(plugin, name) != (name in HARMLESS or name.endswith("_Destroy"))
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("name", [name for name in NAMES if name not in VOID_FUNCTIONS])
def test_args_of_other_versions(
    plugin: Plugin, name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    small = struct(name).ctype(8)
    for address in (None, ctypes.addressof(small)):
        error = call_raw(plugin, name, address)
        assert error
        text = str(plugin.api.error(error, name))
        assert "NULL" in text or "struct_size is 8, expected at least" in text
    assert capfd.readouterr() == ("", "")


def pointer_fields(name: str) -> list[str]:
    """Fields that hold objects, which are numbers here: any number may come."""
    objects = {
        "buffer", "client", "device", "memory", "event", "executable", "topology", "src",
        "loaded_executable", "transfer_manager", "device_description", "stream", "context",
        "dst_device", "dst_memory", "fulfill_alias_buffer_cb", "error", "execute_device",
    }  # fmt: skip
    fields = [field for field in struct(name).fields if field.type == "ptr" and not field.out]
    return [field.name for field in fields if field.name in objects]


def refused(plugin: Plugin, name: str, **values: Any) -> bool:
    """Whether a call fails, as a caller's mistake and with a sentence."""
    try:
        found = plugin.api.call(name, **values)
    except Internal:
        raise
    except PjrtError as error:
        return len(error.message) > 10 or pytest.fail(repr(error.message))
    if name == "TopologyDescription_Serialize":
        free(found.serialized_topology_deleter, found.serialized_topology)
    if name == "Client_CreateBuffersForAsyncHostToDevice":
        manager = found.transfer_manager
        plugin.api.call("AsyncHostToDeviceTransferManager_Destroy", transfer_manager=manager)
    return False


@given(
    name=st.sampled_from([name for name in NAMES if pointer_fields(name)]),
    data=st.data(),
)
@settings(max_examples=400)
def test_pointers_to_anything(client: Client, name: str, data: st.DataObject) -> None:
    known = [
        client.handle.pointer,
        client.devices[0].pointer,
        client.memories[0].pointer,
        client.api.call("Client_TopologyDescription", client=client.handle.pointer).topology,
    ]
    if name == "Client_Destroy":
        known = known[1:]
    before = OBJECTS.count()
    # What other tests left alive would be used as what it is.
    others = st.integers(1, (1 << 64) - 1).filter(lambda pointer: not OBJECTS.holds(pointer))
    pointers = st.one_of(st.none(), st.sampled_from(known), others)
    values = {field: data.draw(pointers) for field in pointer_fields(name)}
    refused(client.plugin, name, **values)
    assert OBJECTS.count() == before


@given(
    size=st.integers(0, (1 << 64) - 1),
    name=st.sampled_from(
        ["Client_Compile", "Executable_DeserializeAndLoad", "TopologyDescription_Deserialize"]
    ),
)
@settings(max_examples=50)
def test_sizes_without_bytes(client: Client, name: str, size: int) -> None:
    values: dict[str, Any] = {
        "Client_Compile": {"client": client.handle.pointer, "compile_options_size": size},
        "Executable_DeserializeAndLoad": {
            "client": client.handle.pointer,
            "serialized_executable_size": size,
        },
        "TopologyDescription_Deserialize": {"serialized_topology_size": size},
    }[name]
    assert refused(client.plugin, name, **values)


PRELUDE = """
import ctypes
import numpy as np
from pjrt_bridge import registry
from pjrt_bridge.runtime import *
from pjrt_bridge_reference import pjrt_bridge_plugins
from tests import programs
plugin = registry.load(pjrt_bridge_plugins())
"""


@pytest.mark.parametrize(
    "ending",
    [
        "",
        "client.close()",
        "del add, client",
        "add = result = None",
        "import os; os._exit(0)",
    ],
)
def test_a_process_ends_while_a_program_runs(ending: str) -> None:
    source = """
        client = Client(plugin, {"latency_ms": 200})
        add = client.compile(programs.ADD)
        (result,) = add(np.ones(64, np.float32), np.ones(64, np.float32))
        print("done")
        ENDING
        """
    assert run_python(source.replace("ENDING", ending), prelude=PRELUDE) == "done"


def test_a_child_process_is_told(plugin: Plugin) -> None:
    source = """
        import os
        from pjrt_bridge.errors import ForkedProcess
        client = plugin.client()
        if os.fork() == 0:
            try:
                client.put(np.ones(4))
            except ForkedProcess:
                os._exit(7)
            os._exit(1)
        print(os.waitstatus_to_exitcode(os.wait()[1]))
        """
    assert run_python(source, prelude=PRELUDE) == "7"


def test_objects_that_end_after_the_interpreter() -> None:
    # As C++ callers do it, in their static destructors.
    source = """
        plugin.api.call("Client_Create")
        print("done")
        """
    before = """
import atexit, ctypes

def late():
    from pjrt_bridge.abi.functions import offset_of
    slot = ctypes.c_void_p.from_address(plugin.api.address + offset_of("Client_Destroy"))
    # The C library calls it when the interpreter is gone, with 0 for the client's args.
    ctypes.CDLL(None).on_exit(ctypes.c_void_p(slot.value), None)

atexit.register(late)
"""
    assert run_python(source, prelude=before + PRELUDE) == "done"
