"""Files of saved models: only regular ones are opened, by plain names, and of bounded sizes."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from pjrt_bridge.errors import SavedModelError

Array = np.ndarray[Any, Any]

MANIFEST_LIMIT = 1 << 28
"""Bytes that a manifest may have."""
PROGRAM_LIMIT = 1 << 31
"""Bytes that a program may have, or a part that a framework runs: they are read as a whole."""

_PLAIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]{0,199}")


def is_plain(name: str) -> bool:
    """Whether a text is the name of a file in the same folder, and of no other one."""
    return _PLAIN.fullmatch(name) is not None


def open_file(path: Path) -> BinaryIO:
    """A regular file for reading.

    Raises:
        SavedModelError: there is none, it cannot be opened, or it is no regular file.
    """
    flags = os.O_RDONLY
    # Without O_NONBLOCK a pipe would be waited for.
    for name in ("O_NONBLOCK", "O_CLOEXEC", "O_BINARY"):
        flags |= getattr(os, name, 0)
    try:
        handle = os.open(path, flags)
    except OSError as error:
        raise SavedModelError(f"{path}: cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise SavedModelError(f"{str(path)!r}: cannot be read: {error}") from error
    if stat.S_ISREG(os.fstat(handle).st_mode):
        return open(handle, "rb")
    os.close(handle)
    raise SavedModelError(f"{path}: cannot be read: found no regular file, needed one")


def read_file(path: Path, limit: int) -> bytes:
    """The contents of a file.

    Raises:
        SavedModelError: it cannot be read, or is larger than the limit in bytes.
    """
    with open_file(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > limit:
            raise SavedModelError(f"{path}: size: found {size} bytes, needed {limit} at most")
        try:
            return file.read(size)
        except OSError as error:
            raise SavedModelError(f"{path}: cannot be read: {error.strerror}") from error


def map_file(path: Path) -> Array:
    """The bytes of a file, read only when they are looked at.

    Raises:
        SavedModelError: it cannot be read, or is empty.
    """
    with open_file(path) as file:
        try:
            return np.memmap(file, np.uint8, "r")
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise SavedModelError(f"{path}: cannot be read: {reason}") from error
