"""What tells one build of a plugin from another, and one kind of processor from another.

Things that are kept on disk for the next process depend on both.
"""

from __future__ import annotations

import hashlib
import os
import platform
from contextlib import suppress
from functools import cache
from pathlib import Path

import platformdirs


@cache
def library_hash(library: Path) -> str:
    """A hash of a library's contents; hashing half a gigabyte takes long, so it is remembered."""
    state = library.stat()
    identity = f"{library}\0{state.st_size}\0{state.st_mtime_ns}"
    folder = platformdirs.user_cache_path("pjrt_bridge") / "libraries"
    memory = folder / hashlib.sha256(identity.encode()).hexdigest()
    with suppress(OSError):
        return memory.read_text()
    with library.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        temporary = memory.with_suffix(f".{os.getpid()}")
        temporary.write_text(found)
        os.replace(temporary, memory)
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
