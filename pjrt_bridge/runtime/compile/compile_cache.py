"""Compiled programs on disk, so that the next process loads what this one compiled.

A program's key holds everything that its compilation depends on: the StableHLO, the compile
options, the plugin's library, the client's options, the processor, and the versions in between.
What cannot be loaded, whatever the reason, is dropped and compiled.

The variable `PJRT_BRIDGE_CACHE` names the folder, or turns the cache `off` (`pjrt_bridge.storage`);
`PJRT_BRIDGE_CACHE_LIMIT` its size in bytes, with a suffix K, M or G if wanted.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Collection
from functools import cache
from pathlib import Path

from pjrt_bridge import environment, storage
from pjrt_bridge.errors import VariableError
from pjrt_bridge.runtime.compile.cache import Cache
from pjrt_bridge.runtime.compile.identity import library_hash, processor
from pjrt_bridge.runtime.core.client_core import ClientCore
from pjrt_bridge.versions import version

LIMIT_VARIABLE = "PJRT_BRIDGE_CACHE_LIMIT"
DEFAULT_LIMIT = 2_000_000_000
WORTH_STORING = 0.02
"""Seconds. What compiles faster than this is not worth a file."""

_FORMAT = "1"
_PROGRAMS = "executables"
_LIMIT = re.compile(r"(\d+)([KMG]?)")
_lasting: set[str] = set()
_UNITS = {"": 1, "K": 1_000, "M": 1_000_000, "G": 1_000_000_000}


def compile_cache() -> Cache | None:
    """The cache that the environment asks for; None where it is off, or others can write to it.

    Raises:
        VariableError: a limit that cannot be read.
    """
    folder = storage.cache_folder(_PROGRAMS)
    if folder is None or not storage.is_trusted(folder):
        return None
    return _cache(folder, environment.value(LIMIT_VARIABLE))


def findings() -> list[Cache]:
    """What is kept beside the programs, each kind in a folder of its own, where there is some."""
    root = storage.cache_root()
    if root is None or not root.is_dir() or not storage.is_trusted(root):
        return []
    folders = (path for path in sorted(root.iterdir()) if path.is_dir())
    found = (Cache(path, 0) for path in folders if path.name != _PROGRAMS)
    return [cache for cache in found if not cache.is_empty]


@cache
def _cache(folder: Path, limit: str) -> Cache:
    return Cache(folder, _bytes(limit) if limit else DEFAULT_LIMIT)


def _bytes(text: str) -> int:
    match = _LIMIT.fullmatch(text.upper())
    if match is None:
        raise VariableError(
            f"{LIMIT_VARIABLE}: found {text!r}, expected a number of bytes such as 500M or 2G"
        )
    return int(match[1]) * _UNITS[match[2]]


def keep_calls_of(target: str) -> None:
    """Let programs be kept that call a function by this name.

    To say so is a promise that the name means the same in every process that asks for such a
    program, and that the function is registered before.
    """
    _lasting.add(target)


def key_of(
    client: ClientCore, code: bytes, options: bytes, custom_calls: Collection[str] = ()
) -> str | None:
    """The cache key of a program: a hash of everything that its compilation depends on.

    Args:
        client: compiles it.
        code: the StableHLO, as the plugin gets it.
        options: the serialized compile options.
        custom_calls: names of the functions that it calls.

    Returns:
        None where one build of the plugin cannot be told from another, or where the program
        calls functions that perhaps only this process has registered (`keep_calls_of`).
    """
    library = client.plugin.library
    if library is None or not _lasting.issuperset(custom_calls):
        return None
    parts: list[str | bytes] = [
        _FORMAT,
        *_versions(),
        library_hash(library),
        client.platform,
        repr(sorted(client.options.items())),
        repr([(device.id, device.kind) for device in client.devices]),
        processor(),
        os.environ.get("XLA_FLAGS", ""),
        options,
        code,
    ]
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest.hexdigest()


@cache
def _versions() -> tuple[str, ...]:
    # Each of them reads a file.
    return tuple(map(version, ("pjrt-bridge", "jaxlib")))
