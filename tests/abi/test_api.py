"""The gate: what happens with tables that are truncated, older, newer, foreign or garbage."""

import ctypes
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pjrt_bridge import errors
from pjrt_bridge.abi.api import REQUIRED, Api
from pjrt_bridge.abi.functions import FIRST_OFFSET, SLOT
from pjrt_bridge.errors import ErrorCode, OutOfRange, PjrtError, PluginIncompatible, Unimplemented
from tests.abi.fake_table import FakeTable


def over(table: FakeTable) -> Api:
    """The gate over a table, which it keeps: the memory would be another's otherwise."""
    return Api(table.address, plugin="fake", keepalive=table)


LAST_REQUIRED = max(SLOT[name] for name in REQUIRED)


def test_a_good_table_is_read_without_calling_it() -> None:
    table = FakeTable()
    api = Api(table.address, plugin="fake", keepalive=table)
    assert api.version == (0, 81)
    assert api.struct_size == 984
    assert table.calls == []
    assert "0.81" in repr(api)


def test_outputs_come_back() -> None:
    def is_ready(args: ctypes.Structure) -> None:
        assert args.event == 7
        args.is_ready = True

    table = FakeTable({"Event_IsReady": is_ready})
    assert Api(table.address, plugin="fake").call("Event_IsReady", event=7).is_ready is True


def test_a_struct_states_the_size_of_its_fields_and_not_that_of_its_memory() -> None:
    """As PJRT_STRUCT_SIZE does, up to the end of the last field; compilers pad behind it."""
    seen = {}

    def is_ready(args: ctypes.Structure) -> None:
        seen[ctypes.sizeof(args)] = args.struct_size

    Api(FakeTable({"Event_IsReady": is_ready}).address, plugin="fake").call("Event_IsReady")
    assert seen == {32: 25}


def test_arrays_structs_and_bytes_are_passed_by_address() -> None:
    seen = {}

    def compile_(args: ctypes.Structure) -> None:
        seen["options"] = ctypes.string_at(args.compile_options, args.compile_options_size)
        seen["program"] = ctypes.c_int64.from_address(args.program).value

    table = FakeTable({"Client_Compile": compile_})
    array = (ctypes.c_int64 * 1)(42)
    Api(table.address, plugin="fake").call(
        "Client_Compile", program=array, compile_options=b"abc", compile_options_size=3
    )
    assert seen == {"options": b"abc", "program": 42}


@pytest.mark.parametrize("code", [*ErrorCode][1:])
def test_every_error_code_has_its_exception(code: ErrorCode) -> None:
    text = ctypes.create_string_buffer(b"it broke", 8)
    destroyed = []

    def message(args: ctypes.Structure) -> None:
        args.message, args.message_size = ctypes.addressof(text), 8

    def get_code(args: ctypes.Structure) -> None:
        args.code = int(code)

    def destroy(args: ctypes.Structure) -> None:
        destroyed.append(args.error)

    table = FakeTable(
        {
            "Event_Await": lambda args: 0xE110,
            "Error_Message": message,
            "Error_GetCode": get_code,
            "Error_Destroy": destroy,
        }
    )
    with pytest.raises(PjrtError) as caught:
        Api(table.address, plugin="fake").call("Event_Await", event=1)
    error = caught.value
    name = "".join(part.capitalize() for part in code.name.split("_"))
    assert type(error) is getattr(errors, name)
    assert (error.code, error.message, error.plugin, error.function) == (
        code,
        "it broke",
        "fake",
        "Event_Await",
    )
    assert destroyed == [0xE110]


def test_an_unknown_error_code_keeps_its_number() -> None:
    error = PjrtError.from_code(99, "new", plugin="fake", function="Compile")
    assert type(error) is PjrtError
    assert error.code == 99
    assert "code 99" in str(error)


def test_the_error_of_a_program_is_told_from_what_is_put_before_it() -> None:
    around = "INTERNAL: Buffer Definition Event: " + 2 * "Error dispatching computation: "
    text = f"{around}OUT_OF_RANGE: found index 7"
    error = PjrtError.from_code(13, text, plugin="cpu", function="Event_Await")
    assert type(error) is OutOfRange
    assert str(error) == "OUT_OF_RANGE: found index 7 [plugin 'cpu', PJRT_Event_Await]"
    error = PjrtError.from_code(13, "INTERNAL: broken", plugin="cpu", function="Event_Await")
    assert str(error) == "INTERNAL: broken [plugin 'cpu', PJRT_Event_Await]"


def test_an_older_table_ends_where_it_says() -> None:
    older = FakeTable(slots=LAST_REQUIRED + 1, version=(0, 54))
    api = Api(older.address, plugin="older")
    assert not api.has("LoadedExecutable_GetDeviceAssignment")
    with pytest.raises(Unimplemented, match=r"table has \d+ bytes, the function needs 984"):
        api.call("LoadedExecutable_GetDeviceAssignment", executable=1)
    assert older.calls == []


def test_a_newer_table_offers_more() -> None:
    newer = FakeTable({"Device_GetAttributes": lambda args: None}, slots=150, version=(0, 130))
    api = Api(newer.address, plugin="newer")
    assert api.has("Device_GetAttributes")
    api.call("Device_GetAttributes", device=1)
    assert newer.calls == ["Device_GetAttributes"]


def test_an_empty_slot_is_not_called() -> None:
    api = over(FakeTable())
    with pytest.raises(Unimplemented, match="the slot is NULL"):
        api.call("Client_DmaMap", client=1)


def test_a_function_that_is_not_declared() -> None:
    with pytest.raises(errors.PjrtBridgeError, match="not declared"):
        over(FakeTable()).call("Client_Explode")


@pytest.mark.parametrize("name", REQUIRED)
def test_a_missing_required_function(name: str) -> None:
    with pytest.raises(PluginIncompatible, match=name):
        over(FakeTable(without=(name,)))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"version": (1, 0)}, r"states PJRT API 1\.0.*speaks 0\.x"),
        ({"version": (0, -3)}, "states PJRT API"),
        ({"struct_size": 0}, "claims 0 bytes"),
        ({"struct_size": 40}, "claims 40 bytes"),
        ({"struct_size": 981}, "claims 981 bytes"),
        ({"struct_size": 1 << 40}, "which no PJRT_Api has"),
        ({"slots": 12}, "lacks functions"),
        ({"pointers": {"Event_Await": 0x1}}, "points to 0x1, which is no code"),
        ({"pointers": {"Client_DmaMap": 0x2000000000000}}, "which is no code"),
    ],
)
def test_an_impossible_table(options: dict[str, object], message: str) -> None:
    table = FakeTable(**options)  # type: ignore[arg-type]
    with pytest.raises(PluginIncompatible, match=message):
        Api(table.address, plugin="fake")
    assert table.calls == []


def test_data_is_no_code() -> None:
    table = FakeTable()
    data = FakeTable(pointers={"Event_Await": table.address})
    with pytest.raises(PluginIncompatible, match="which is no code"):
        Api(data.address, plugin="fake")


@pytest.mark.parametrize("address", [0, 8, 0x7FFF00000003])
def test_no_table_at_all(address: int) -> None:
    with pytest.raises(PluginIncompatible, match="which is no table"):
        Api(address, plugin="fake")


@settings(max_examples=300)
@given(
    garbage=st.binary(min_size=64, max_size=2000), plausible=st.booleans(), size=st.integers(0, 300)
)
def test_garbage_is_refused(garbage: bytes, plausible: bool, size: int) -> None:
    memory = ctypes.create_string_buffer(garbage, 4096)
    if plausible:
        header = struct.pack("<QQQQii", FIRST_OFFSET + 8 * size, 0, 24, 0, 0, 81)
        ctypes.memmove(memory, header, len(header))
    with pytest.raises(PluginIncompatible):
        Api(ctypes.addressof(memory), plugin="garbage")
