"""Declared structs of the XLA FFI against its header, by way of a C compiler."""

import ctypes
import importlib.metadata
import re
import subprocess
from pathlib import Path

from pjrt_bridge.abi.ffi_structs import API, DATA_TYPES, METADATA, STRUCTS
from pjrt_bridge.abi.structs import Struct


def header() -> Path:
    files = importlib.metadata.files("jaxlib") or []
    (found,) = [file for file in files if str(file).endswith("xla/ffi/api/c_api.h")]
    return Path(str(found.locate()))


def declared() -> dict[str, Struct]:
    return {**STRUCTS, "XLA_FFI_Api": API.struct}


RENAMED = {"XLA_FFI_Extension_Base": "XLA_FFI_InternalExtension"}
"""Structs that 0.5 of the header (jaxlib 0.12) calls by another name, and which are the same."""


def c_struct(name: str) -> str:
    """The name of a struct in the header that is there."""
    return name if re.search(rf"\b{name}\b", header().read_text()) else RENAMED.get(name, name)


def c_name(struct: str, field: str) -> str:
    return f"XLA_FFI_{field}" if (struct, field) == ("XLA_FFI_Api", "Error_Create") else field


def test_offsets_are_those_of_the_header(tmp_path: Path) -> None:
    lines, wanted = [], {}
    for name, struct in declared().items():
        c_type = c_struct(name)
        for field in struct.fields:
            there = c_name(name, field.name)
            lines.append(
                f'printf("{name}.{field.name} %zu %zu\\n", offsetof({c_type}, {there}), '
                f"sizeof((({c_type}*)0)->{there}));"
            )
            size = getattr(struct.ctype, field.name).size
            wanted[f"{name}.{field.name}"] = [struct.offset(field.name), size]
        if name not in ("XLA_FFI_Api", "XLA_FFI_Metadata"):
            lines.append(f'printf("{name} 0 %zu\\n", sizeof({c_type}));')
            wanted[name] = [0, ctypes.sizeof(struct.ctype)]
    source, binary = tmp_path / "layout.c", tmp_path / "layout"
    body = "\n  ".join(lines)
    source.write_text(
        f'#include <stdio.h>\n#include "{header()}"\nint main(void) {{\n  {body}\n  return 0;\n}}\n'
    )
    subprocess.run(["cc", "-std=c11", "-o", binary, source], check=True)
    printed = subprocess.run([binary], check=True, capture_output=True, text=True).stdout
    found = [line.split() for line in printed.splitlines()]
    assert {key: list(map(int, numbers)) for key, *numbers in found} == wanted


def test_data_types_are_those_of_the_header() -> None:
    text = header().read_text()
    codes = {
        int(code): name.lower()
        for name, code in re.findall(r"XLA_FFI_DataType_(\w+) = (\d+)", text)
    }
    kinds = {"pred": "bool", "bf16": "bfloat16", "c64": "complex64", "c128": "complex128"}
    letters = {"s": "int", "u": "uint", "f": "float"}
    for code, ours in DATA_TYPES.items():
        name = codes[code]
        spelled = kinds.get(name) or letters[name[0]] + name[1:].replace("e", "_e", 1)
        assert ours == spelled
    unknown = {codes[code] for code in set(codes) - set(DATA_TYPES)}
    assert unknown == {"invalid", "token", "s1", "u1"}
    assert f"XLA_FFI_Extension_Metadata = {METADATA}" in text
