"""Opens a plugin's shared library, after checks of the file."""

from __future__ import annotations

import ctypes
import struct
from pathlib import Path

from pjrt_bridge.abi.api import Api
from pjrt_bridge.errors import PluginLoadError
from pjrt_bridge.runtime.objects.missing_libraries import missing_libraries

_ELF64_LITTLE = b"\x7fELF\x02\x01"
_LOADED_SEGMENT = 1
_SHOWN = 4


def open_library(path: Path, name: str) -> Api:
    """Load a library and read the table that its `GetPjrtApi` returns.

    Raises:
        PluginLoadError: no such file, not a loadable library, or no `GetPjrtApi` in it.
        PluginIncompatible: its API table cannot be used.
    """
    if not path.is_file():
        raise PluginLoadError(f"plugin {name!r}: there is no file {path}")
    try:
        # The loader maps what is missing and dies of it.
        if _truncated(path):
            raise OSError("the file is truncated; install it again")
        library = ctypes.CDLL(str(path))
    except OSError as error:
        missing = missing_libraries(path, str(error))
        why = f"it needs {_listed(missing)}, not found" if missing else str(error)
        raise PluginLoadError(
            f"plugin {name!r}: {path} cannot be loaded: {why}", missing=missing
        ) from error
    try:
        entry = library.GetPjrtApi
    except AttributeError:
        raise PluginLoadError(
            f"plugin {name!r}: {path} exports no GetPjrtApi, so it is no PJRT plugin"
        ) from None
    entry.restype = ctypes.c_void_p
    return Api(entry() or 0, plugin=name, keepalive=library)


def _listed(names: tuple[str, ...]) -> str:
    shown = ", ".join(names[:_SHOWN])
    return f"{shown} and {len(names) - _SHOWN} more" if len(names) > _SHOWN else shown


def _truncated(path: Path) -> bool:
    """Whether an ELF file ends before one of its segments does (elf(5), `Elf64_Phdr`)."""
    with path.open("rb") as file:
        header = file.read(64)
        if len(header) < 64 or not header.startswith(_ELF64_LITTLE):
            return False
        (table,) = struct.unpack_from("<Q", header, 32)
        entry_size, count = struct.unpack_from("<HH", header, 54)
        file.seek(table)
        segments = file.read(entry_size * count)
        if len(segments) < entry_size * count or entry_size < 56:
            return True
        size = path.stat().st_size
        for start in range(0, len(segments), entry_size):
            kind, _, offset = struct.unpack_from("<IIQ", segments, start)
            (length,) = struct.unpack_from("<Q", segments, start + 32)
            if kind == _LOADED_SEGMENT and offset + length > size:
                return True
    return False
