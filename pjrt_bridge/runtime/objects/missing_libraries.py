"""Which shared libraries a library needs that the loader does not find, for error messages."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

_ONE = re.compile(r"(\S+): cannot open shared object file")
_NOT_FOUND = re.compile(r"^\s*(\S+) => not found", re.MULTILINE)
_SECONDS = 20.0


def missing_libraries(library: Path, message: str) -> tuple[str, ...]:
    """Names of the shared libraries that are missing; empty where something else is wrong.

    Args:
        library: what could not be loaded.
        message: the loader's, dlopen(3), which names the first of them.
    """
    first = _ONE.search(message)
    if first is None:
        return ()
    try:
        # It maps the library and those that it needs, and runs none of their code.
        listed = subprocess.run(
            ["ldd", str(library)], capture_output=True, text=True, timeout=_SECONDS, check=False
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        listed = ""
    return tuple(dict.fromkeys([first[1], *_NOT_FOUND.findall(listed)]))
