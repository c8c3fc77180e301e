"""Reading files that a user names: devices may never end, sparse files be larger than memory."""

from __future__ import annotations

import os
import stat
from pathlib import Path

CONFIGURATION = 1 << 20
"""Bytes that a file of settings or of a description of hardware may have."""


def read(path: Path, limit: int) -> bytes:
    """The contents of a file or pipe.

    Args:
        path: the file's.
        limit: bytes that it may have.

    Raises:
        OSError: it cannot be read.
        ValueError: neither a file nor a pipe, too large, or no path.
    """
    with path.open("rb") as file:
        found = os.fstat(file.fileno())
        if not (stat.S_ISREG(found.st_mode) or stat.S_ISFIFO(found.st_mode)):
            raise ValueError("it is neither a regular file nor a pipe")
        # What a sparse file or a pipe says of its size need not fit in memory.
        content = b"" if found.st_size > limit else file.read(limit + 1)
    if max(found.st_size, len(content)) > limit:
        raise ValueError(f"it has more than {limit} bytes, which is more than expected there")
    return content


def reason(error: OSError | ValueError | MemoryError) -> str:
    """Why `read` failed, in a few words."""
    return getattr(error, "strerror", None) or str(error) or "it does not fit in memory"
