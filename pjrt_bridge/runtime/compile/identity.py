"""What tells one build of a plugin from another, and one kind of processor from another.

Things that are kept on disk for the next process depend on both.
"""

from __future__ import annotations

import hashlib
import platform
import re
from contextlib import suppress
from functools import cache
from pathlib import Path

from pjrt_bridge import storage
from pjrt_bridge.runtime.compile.cache import Cache

_LIMIT = 1_000_000
_SHA256 = re.compile(rb"[0-9a-f]{64}")


@cache
def library_hash(library: Path) -> str:
    """A hash of a library's contents, kept on disk: hashing half a gigabyte takes long."""
    state = library.stat()
    identity = f"{library}\0{state.st_size}\0{state.st_mtime_ns}"
    folder = storage.cache_folder("libraries")
    kept = None if folder is None else Cache(folder, _LIMIT)
    key = hashlib.sha256(identity.encode()).hexdigest()
    if kept is not None and _SHA256.fullmatch(known := kept.get(key) or b""):
        return known.decode()
    with library.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if kept is not None:
        kept.put(key, found.encode())
    return found


@cache
def processor() -> str:
    """What code for this processor may use: its model and features."""
    with suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        found = {line.split(":")[0].strip(): line.split(":", 1)[-1].strip() for line in lines}
        features = " ".join(sorted(found.get("flags", found.get("Features", "")).split()))
        return f"{platform.machine()} {found.get('model name', '')} {features}"
    return f"{platform.machine()} {platform.processor()}"
