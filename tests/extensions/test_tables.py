"""Accessors of every extension: size checks, empty slots, errors, and what functions give."""

from typing import Any

import pytest

from pjrt_bridge.abi.chain import TYPE_NAMES
from pjrt_bridge.abi.extension_structs import EXTENSIONS
from pjrt_bridge.abi.implementation_objects import Status
from pjrt_bridge.errors import ErrorCode, ExtensionUnavailable, NotFound
from pjrt_bridge.extensions import BUILT_IN, FFI, Accessor, Layouts, tables
from pjrt_bridge.runtime import Client, Plugin
from tests.extensions.offering import offering

ABSENT = [
    accessor
    for accessor in BUILT_IN
    if accessor.TABLE.name not in ("PhaseCompile", "FFI", "MemoryDescriptions", "Layouts")
]
FUNCTIONS = [
    (accessor, function)
    for accessor in BUILT_IN
    for function, args in accessor.TABLE.functions.items()
    if args is not None
]


def name(value: object) -> str:
    return (
        value.TABLE.name if isinstance(value, type) and issubclass(value, Accessor) else str(value)
    )


def test_there_is_an_accessor_for_every_type() -> None:
    types = [accessor.TABLE.type for accessor in BUILT_IN]
    assert sorted(types) == sorted(set(range(len(TYPE_NAMES))) - {TYPE_NAMES.index("Unknown")})
    assert all(accessor.TABLE is EXTENSIONS[accessor.TABLE.type] for accessor in BUILT_IN)


@pytest.mark.parametrize("accessor", ABSENT, ids=name)
def test_absent(client: Client, accessor: type[Accessor]) -> None:
    match = rf"does not offer the extension {accessor.TABLE.name} .*it offers PhaseCompile, FFI"
    with pytest.raises(ExtensionUnavailable, match=match) as caught:
        client.extension(accessor)
    assert caught.value.extension == accessor.TABLE.name
    assert caught.value.function is None


@pytest.mark.parametrize(("accessor", "function"), FUNCTIONS, ids=name)
def test_every_function_is_checked(plugin: Plugin, accessor: type[Accessor], function: str) -> None:
    """Called where it is there; refused where the struct ends before it, or its slot is empty."""
    table = accessor.TABLE
    seen: list[Any] = []

    def answer(args: Any) -> None:
        seen.append([getattr(args, field.name, None) for field in args_struct.fields[:1]])

    args_struct = table.functions[function]
    assert args_struct is not None
    with offering(plugin, table, {function: answer}) as client:
        found = accessor(client, client.extensions[0])
        assert found.offers(function)
        found.call(function)
        sized = args_struct.fields[0].name == "struct_size"
        assert seen == [[args_struct.size if sized else None]]
    needed = table.size_needed(function)
    with offering(plugin, table, {function: answer}, struct_size=needed - 8) as client:
        found = accessor(client, client.extensions[0])
        assert not found.offers(function)
        with pytest.raises(
            ExtensionUnavailable, match=f"too old for it: found {needed - 8} bytes, needs {needed}"
        ):
            found.call(function)
    with (
        offering(plugin, table, {}, slots={function: None}) as client,
        pytest.raises(ExtensionUnavailable, match="leaves its slot empty"),
    ):
        accessor(client, client.extensions[0]).call(function)
    assert len(seen) == 1


def test_an_error_of_a_function(plugin: Plugin) -> None:
    def fail(args: Any) -> None:
        raise Status(ErrorCode.NOT_FOUND, f"no stream of {args.device:#x}")

    with (
        offering(plugin, tables.Stream.TABLE, {"get_stream": fail}) as client,
        pytest.raises(NotFound, match=r"no stream of 0x10 .*PJRT_Stream_get_stream"),
    ):
        client.extension(tables.Stream).call("get_stream", device=16)


def test_outputs_of_a_function(plugin: Plugin) -> None:
    def answer(args: Any) -> None:
        args.stream = args.device + 1

    with offering(plugin, tables.Stream.TABLE, {"get_stream": answer}) as client:
        assert client.extension(tables.Stream).call("get_stream", device=16).stream == 17


def test_a_slot_that_is_no_code(plugin: Plugin) -> None:
    table = tables.Stream.TABLE
    with (
        offering(plugin, table, {}, slots={"get_stream": 0x2000000000000}) as client,
        pytest.raises(ExtensionUnavailable, match="which is no code"),
    ):
        client.extension(tables.Stream).call("get_stream", device=16)


def test_the_same_accessor_again(client: Client) -> None:
    assert client.extension(FFI) is client.extension(FFI)
    assert client.extension(Layouts).client is client
