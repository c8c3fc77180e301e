"""Every declared size and offset against the official header, by way of a C compiler."""

import ctypes
import importlib.metadata
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from pjrt_bridge.abi.functions import FIRST_OFFSET, FUNCTIONS, SLOT, SLOTS_0_81, offset_of
from pjrt_bridge.abi.structs import STRUCTS, Struct

OLD_FUNCTIONS = list(FUNCTIONS)[:SLOTS_0_81]


@pytest.fixture(scope="module")
def header() -> Path:
    files = importlib.metadata.files("xla-cpu-pjrt") or []
    (found,) = [file for file in files if file.name == "pjrt_c_api.h"]
    return Path(str(found.locate()))


def declared() -> dict[str, Struct]:
    args = {f"PJRT_{name}_Args": FUNCTIONS[name] for name in OLD_FUNCTIONS}
    return STRUCTS | {name: struct for name, struct in args.items() if struct is not None}


def c_name(struct: str, field: str) -> str:
    # The header's unions have no name; ours stand for their first or widest member.
    unions = {
        ("PJRT_NamedValue", "value"): "int64_value",
        ("PJRT_Buffer_MemoryLayout", "layout"): "tiled",
    }
    return unions.get((struct, field), field)


def measure(header: Path, folder: Path) -> dict[str, int]:
    """Sizes and offsets as the compiler sees them."""
    lines = []
    for name, struct in declared().items():
        lines.append(f'printf("{name} %zu\\n", sizeof({name}));')
        last = c_name(name, struct.fields[-1].name)
        lines.append(f'printf("{name}#size %zu\\n", (size_t)PJRT_STRUCT_SIZE({name}, {last}));')
        for field in struct.fields:
            there = c_name(name, field.name)
            lines.append(f'printf("{name}.{field.name} %zu\\n", offsetof({name}, {there}));')
            lines.append(
                f'printf("{name}.{field.name}#size %zu\\n", sizeof((({name}*)0)->{there}));'
            )
    lines += [
        f'printf("{function} %zu\\n", offsetof(PJRT_Api, PJRT_{function}));'
        for function in OLD_FUNCTIONS
    ]
    lines.append('printf("PJRT_Api %zu\\n", (size_t)PJRT_Api_STRUCT_SIZE);')
    lines.append('printf("version %zu\\n", offsetof(PJRT_Api, pjrt_api_version));')
    source = folder / "layout.c"
    body = "\n  ".join(lines)
    source.write_text(
        f'#include <stdio.h>\n#include "{header}"\nint main(void) {{\n  {body}\n  return 0;\n}}\n'
    )
    compiler = shutil.which("cc") or shutil.which("gcc")
    assert compiler, "a C compiler is needed to prove the layouts"
    binary = folder / "layout"
    subprocess.run([compiler, "-std=c11", "-o", binary, source], check=True)
    printed = subprocess.run([binary], check=True, capture_output=True, text=True).stdout
    return {key: int(value) for key, value in (line.split() for line in printed.splitlines())}


def test_sizes_and_offsets_are_those_of_the_header(header: Path, tmp_path: Path) -> None:
    measured = measure(header, tmp_path)
    wanted = {
        "PJRT_Api": FIRST_OFFSET + 8 * SLOTS_0_81,
        "version": 16,
    }
    for function in OLD_FUNCTIONS:
        wanted[function] = offset_of(function)
    for name, struct in declared().items():
        wanted[name] = ctypes.sizeof(struct.ctype)
        wanted[f"{name}#size"] = struct.size
        for field in struct.fields:
            wanted[f"{name}.{field.name}"] = struct.offset(field.name)
            wanted[f"{name}.{field.name}#size"] = getattr(struct.ctype, field.name).size
    assert measured == wanted


def test_the_header_has_no_function_or_args_struct_that_is_not_declared(header: Path) -> None:
    text = header.read_text()
    functions = re.findall(r"_PJRT_API_STRUCT_FIELD\(PJRT_(\w+)\);", text)
    assert functions == OLD_FUNCTIONS
    args = set(re.findall(r"^struct (PJRT_\w+_Args) \{", text, re.MULTILINE))
    assert args <= set(declared())


def test_appended_slots_follow_in_order() -> None:
    # PJRT API 0.114 has 138 functions in a table of 1144 bytes.
    assert SLOT["Client_CreateErrorBuffer"] == 118
    assert SLOT["Device_GetAttributes"] == 128
    assert offset_of("TopologyDescription_GetMemorySpaceKindIds") + 8 == 1144


def test_sizes_that_every_known_plugin_accepts() -> None:
    sizes = {name: struct.size for name, struct in declared().items()}
    assert sizes["PJRT_ExecuteOptions"] == 112
    assert sizes["PJRT_Executable_DeserializeAndLoad_Args"] == 64
    assert sizes["PJRT_Device_MemoryStats_Args"] == 185
