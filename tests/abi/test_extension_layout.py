"""Declared layouts of extensions against a compiler's, and against those of real plugins."""

import ctypes
from pathlib import Path

import pytest

from pjrt_bridge.abi.chain import TYPE_NAMES
from pjrt_bridge.abi.extension_structs import (
    EXTENSIONS,
    PROFILER_API,
    STRUCTS,
    ExtensionTable,
    by_name,
)
from pjrt_bridge.abi.structs import Struct
from pjrt_bridge.runtime.objects.plugin import Plugin

MEASURED = Path(__file__).with_name("extension_layouts.txt")

# Struct sizes in the chains of plugins that state API 0.81 (CPU), 0.116 (CUDA) and 0.117 (TPU).
SEEN_AT_0_81 = {9: 64, 5: 48, 6: 40, 4: 72}
SEEN_AT_0_116 = {20: 120, 24: 56, 19: 40, 12: 56, 6: 40, 5: 48, 4: 80, 0: 33, 3: 40, 2: 40, 1: 40}
SEEN_AT_0_117 = {
    5: 48, 24: 56, 23: 32, 22: 64, 21: 96, 20: 120, 19: 40, 18: 248, 17: 96, 16: 280, 14: 40,
    9: 192, 12: 56, 13: 40, 6: 40, 4: 80, 8: 80, 1: 40,
}  # fmt: skip
LONGER_THAN_PUBLIC_HEADERS = {0, 9, 16, 17, 18}


def declared() -> dict[str, Struct]:
    found = dict(STRUCTS)
    for table in [*EXTENSIONS.values(), PROFILER_API]:
        found[table.struct.name] = table.struct
        found |= {args.name: args for args in table.functions.values() if args is not None}
    return found


def measured() -> list[tuple[str, list[int]]]:
    lines = [line for line in MEASURED.read_text().splitlines() if not line.startswith("#")]
    pairs = [line.split(":") for line in lines]
    return [(name, [int(number) for number in numbers.split()]) for name, numbers in pairs]


def test_every_known_type_is_declared() -> None:
    names = {number: table.name for number, table in EXTENSIONS.items()}
    assert names == dict(enumerate(TYPE_NAMES))
    assert by_name("Layouts") is EXTENSIONS[4]
    with pytest.raises(KeyError):
        by_name("Layout")


@pytest.mark.parametrize(("name", "numbers"), measured())
def test_offsets_are_those_of_the_compiler(name: str, numbers: list[int]) -> None:
    struct = declared()[name]
    assert [struct.offset(field.name) for field in struct.fields] + [struct.size] == numbers


def test_sizes_are_those_of_real_chains() -> None:
    newest = {number: table.struct.size for number, table in EXTENSIONS.items()}
    for seen in (SEEN_AT_0_116, SEEN_AT_0_117):
        longer = {number for number, size in seen.items() if size != newest[number]}
        assert longer == LONGER_THAN_PUBLIC_HEADERS & set(seen)
        assert all(seen[number] > newest[number] for number in longer)
    older = {number: size for number, size in SEEN_AT_0_81.items() if size != newest[number]}
    assert older == {4: by_name("Layouts").size_needed("Executable_GetOutputLayouts")}


def test_the_chain_of_the_cpu_plugin(plugin: Plugin) -> None:
    assert {link.type: link.struct_size for link in plugin.extensions} == SEEN_AT_0_81
    empty = []
    for link in plugin.extensions:
        table = EXTENSIONS[link.type]
        for function in table.functions:
            if table.size_needed(function) <= link.struct_size:
                address = link.address + table.offset_of(function)
                if not ctypes.c_void_p.from_address(address).value:
                    empty.append(f"{table.name}.{function}")
    assert empty == ["PhaseCompile.get_compiler", "PhaseCompile.destroy_compiler"]


@pytest.mark.parametrize("table", EXTENSIONS.values(), ids=lambda table: table.name)
def test_slots_follow_the_base_in_order(table: ExtensionTable) -> None:
    assert [field.name for field in table.struct.fields[:3]] == ["struct_size", "type", "next"]
    needed = [table.size_needed(function) for function in table.functions]
    if needed:
        assert needed == list(range(32, 32 + 8 * len(needed), 8))
        assert needed[-1] == table.struct.size
    assert table.void <= set(table.functions)
    with pytest.raises(KeyError):
        table.offset_of("no_such_function")


def test_heads_of_args() -> None:
    layouts, stream = by_name("Layouts").functions, by_name("Stream").functions
    metadata = by_name("ExecutableMetadata").functions
    heads = [
        [field.name for field in args.fields[:2]]
        for args in (
            layouts["Buffer_MemoryLayout"],
            stream["get_stream"],
            metadata["get_executable_metadata"],
        )
        if args is not None
    ]
    assert heads == [
        ["struct_size", "extension_start"],
        ["struct_size", "device"],
        ["executable", "metadata"],
    ]
    assert by_name("Megascale").functions["multi_slice_config_serialize"] is None


def test_new_args_carry_their_size() -> None:
    args = by_name("FFI").functions["user_data_add"]
    assert args is not None
    assert args.new().struct_size == 40
    assert by_name("PhaseCompile").void == {"destroy_compiler", "c_buffers_destroy"}
