"""The PJRT extensions as data: their structs, their functions and the args structs of these.

`EXTENSIONS[4].functions["Buffer_MemoryLayout"]` is the args struct of a function of Layouts, and
`size_needed` how many bytes an extension must have to hold its pointer. An extension states no
version at run time: its struct size is the only signal of which functions it has. Args structs of
extensions have changed more often than those of PJRT_Api; a plugin of another age may refuse them.

The declarations are text in `pjrt_bridge.abi.extension_tables` and `tpu_extension_tables`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from pjrt_bridge.abi import extension_tables as tables
from pjrt_bridge.abi import tpu_extension_tables as tpu
from pjrt_bridge.abi.structs import Struct, declare, statements

_BASE = "size struct_size, enum type, ptr next"
_HEADS = {"base": "size struct_size, ptr extension_start", "sized": "size struct_size"}
_TITLE = re.compile(r"(\w+) (\d+) \(v(\d+)\) (\w+)")


@dataclass(frozen=True, slots=True)
class FunctionTable:
    """A C struct of function pointers.

    Attributes:
        name: what the table is called in errors.
        struct: the table itself; one field for each function and each datum.
        functions: function to its args struct, in slot order; None for a slot that is deprecated.
        void: functions that return nothing, where others return a pointer to an error.
    """

    name: str
    struct: Struct
    functions: Mapping[str, Struct | None]
    void: frozenset[str]

    def offset_of(self, field: str) -> int:
        """Byte offset of a function pointer, or of another field.

        Raises:
            KeyError: the table has no such field.
        """
        if field not in {known.name for known in self.struct.fields}:
            raise KeyError(field)
        return self.struct.offset(field)

    def size_needed(self, field: str) -> int:
        """Bytes that the table must have for this pointer to lie within it.

        Raises:
            KeyError: the table has no such field.
        """
        return self.offset_of(field) + 8


@dataclass(frozen=True, slots=True)
class ExtensionTable(FunctionTable):
    """An extension struct.

    Attributes:
        type: PJRT_Extension_Type.
        version: version of the layout that is declared; a plugin does not tell its own.
    """

    type: int
    version: int


def _declared_structs() -> dict[str, Struct]:
    found = {}
    for line in (*statements(tables.STRUCTS), *statements(tpu.STRUCTS)):
        name, _, fields = line.partition(":")
        found[name] = declare(name, fields)
    return found


STRUCTS: dict[str, Struct] = _declared_structs()
"""C name to declaration, for structs that args structs of extensions embed or point to."""


def parse(
    name: str, struct: str, head: str, lines: str, known: Mapping[str, Struct] | None = None
) -> FunctionTable:
    """Read a table in the notation of `pjrt_bridge.abi.extension_tables`.

    Args:
        name: what the table is called in errors.
        struct: its C name.
        head: the fields before the first line.
        lines: one field each.
        known: structs that fields may embed; None: `STRUCTS`.
    """
    structs = STRUCTS if known is None else known
    fields = [head]
    functions: dict[str, Struct | None] = {}
    void = set()
    for line in statements(lines):
        title, colon, args = line.partition(":")
        words = title.split()
        if words[0] == ".":
            fields.append(" ".join(words[1:]))
            continue
        if words[0] == "void":
            words = words[1:]
            void.add(words[0])
        function, args_name = words
        fields.append(f"fn {function}")
        functions[function] = declare(args_name, _full(args), structs) if colon else None
    table = declare(struct, ", ".join(fields), structs)
    return FunctionTable(name, table, functions, frozenset(void))


def _full(fields: str) -> str:
    first, comma, rest = fields.strip().partition(",")
    return _HEADS.get(first, first) + comma + rest


def extension(text: str) -> ExtensionTable:
    """Declare an extension, in the notation of `pjrt_bridge.abi.extension_tables`.

    Raises:
        ValueError: the first line is no title, such as "Layouts 4 (v4) PJRT_Layouts_Extension".
    """
    title, _, lines = text.strip().partition("\n")
    match = _TITLE.fullmatch(title)
    if not match:
        raise ValueError(f"found {title!r}, expected 'NAME TYPE (vVERSION) STRUCT'")
    name, number, version, struct = match.groups()
    table = parse(name, struct, _BASE, lines)
    return ExtensionTable(
        name, table.struct, table.functions, table.void, int(number), int(version)
    )


EXTENSIONS: dict[int, ExtensionTable] = {
    table.type: table
    for texts in (tables.EXTENSIONS, tpu.EXTENSIONS)
    for table in map(extension, texts.strip().split("\n\n"))
}
"""PJRT_Extension_Type to declaration."""

PROFILER_API: FunctionTable = parse(
    "PLUGIN_Profiler_Api", "PLUGIN_Profiler_Api", "size struct_size, ptr priv", tables.PROFILER_API
)
"""The table that `profiler_api` of the Profiler extension points to. Its functions return a
PLUGIN_Profiler_Error, which the table's own functions read and destroy."""


def by_name(name: str) -> ExtensionTable:
    """Find an extension by its name, as in `Layouts`.

    Raises:
        KeyError: no extension is called so.
    """
    for table in EXTENSIONS.values():
        if table.name == name:
            return table
    raise KeyError(name)
