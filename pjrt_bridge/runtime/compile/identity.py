"""Identities of plugins' builds and of processors, for keys of what is kept.

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
_INSTRUCTIONS = re.compile(
    r"(mmx|sse|ssse|avx|amx|bmi|f16c|fma|aes|vaes|pclmul|vpclmul|sha|popcnt|movbe|abm|adx|gfni|xsave|"
    r"cx16|lahf|rdrnd|rdseed|asimd|sve|sme|atomics|fp|crc32|pmull|i8mm|bf16|dotprod|lrcpc|fcma|jscvt)"
)
"""Names by which Linux lists instruction sets; what else it lists concerns the system alone."""
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


def missing_features(processor_of_code: str) -> list[str]:
    """The instruction sets that code was compiled for and this processor lacks.

    Args:
        processor_of_code: what `processor` gave where it was compiled.
    """
    architecture, _, needed = processor_of_code.partition(" ")
    here, _, found = processor().partition(" ")
    if architecture != here:
        return [architecture]
    present = set(found.split())
    return [name for name in needed.split() if _INSTRUCTIONS.match(name) and name not in present]
