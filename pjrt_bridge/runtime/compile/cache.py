"""A folder of blobs by key that the processes of one user share, bounded in size.

A blob that cannot be written is not stored, and nothing is raised. The file that was not used
longest goes first when the folder is over its limit. A file begins with its key and ends with a
hash of its blob: one that was damaged, or copied over another one, is ignored. A folder that other
users can write to is neither read nor written (`pjrt_bridge.storage`).
"""

from __future__ import annotations

import hashlib
import os
import re
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pjrt_bridge import storage

_SUFFIX = ".entry"
_MAGIC = b"pjrt_bridge cache entry 1: "
_HASH = 32
_FORMER = re.compile(r"[0-9a-f]{64}(?P<suffix>\.blob)?")
"""Names of files in the forms that the bridge wrote before: blobs, and hashes of 64 bytes."""
_ABANDONED = 3600
"""Seconds after which an unfinished file is taken for one whose writer died."""


@dataclass(frozen=True)
class Entry:
    """A file of the cache.

    Attributes:
        key: what it is stored under.
        size: in bytes.
        used: when it was last written or read, in seconds since 1970.
    """

    key: str
    size: int
    used: float


class Cache:
    """Blobs in a folder.

    Args:
        folder: is made when something is stored.
        limit: bytes that the files may have together; it may be exceeded by 1/32 for a while.
    """

    def __init__(self, folder: Path, limit: int) -> None:
        self.folder = folder
        self.limit = limit
        # Listing all files takes longer than writing one.
        self._unseen = limit

    def get(self, key: str) -> bytes | None:
        """The bytes stored under a key; None where there are none, or they were damaged."""
        path, start = self._path(key), _start(key)
        found = storage.read(path, self.limit + len(start) + _HASH, start=start)
        if found is None:
            return None
        blob = found[:-_HASH]
        if found[-_HASH:] != _hash(blob):
            # Damage by a disk, which concerns the bridge alone.
            self.drop(key)
            return None
        with suppress(OSError):
            os.utime(path)
        return blob

    def put(self, key: str, blob: bytes) -> bool:
        """Store a blob; whether it is there now.

        Nothing is raised where it cannot be written: a full disk costs time, not the program.
        """
        content = b"".join((_start(key), blob, _hash(blob)))
        if len(blob) > self.limit or not storage.write(self._path(key), content):
            return False
        self._unseen += len(blob)
        if self._unseen > self.limit // 32:
            self._unseen = 0
            self._shrink(keep=key)
        return True

    def drop(self, key: str) -> None:
        """Forget what is stored under a key."""
        with suppress(OSError):
            self._path(key).unlink()

    def entries(self) -> list[Entry]:
        """The entries, most recently used first."""
        return sorted(self._entries(), key=lambda entry: -entry.used)

    def clear(self) -> int:
        """Delete everything; how many entries there were."""
        if not storage.is_trusted(self.folder):
            return 0
        found = list(self._entries())
        for entry in found:
            self.drop(entry.key)
        return len(found) + self._sweep(age=0)

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to clear."""
        return not any(self._entries()) and not any(self._former())

    def _entries(self) -> Iterator[Entry]:
        if not storage.is_trusted(self.folder):
            return
        with suppress(OSError), os.scandir(self.folder) as files:
            for file in files:
                if file.name.endswith(_SUFFIX):
                    # Another process may delete it at any moment.
                    with suppress(OSError):
                        state = file.stat(follow_symlinks=False)
                        key = file.name.removesuffix(_SUFFIX)
                        size = max(0, state.st_size - len(_start(key)) - _HASH)
                        yield Entry(key, size, state.st_mtime)

    def _shrink(self, keep: str) -> None:
        found = self.entries()
        total = sum(entry.size for entry in found)
        for entry in reversed(found):
            if total <= self.limit:
                break
            if entry.key != keep:
                self.drop(entry.key)
                total -= entry.size
        self._sweep(age=_ABANDONED)

    def _sweep(self, age: float) -> int:
        """Delete what processes left that died while writing, and files of former forms.

        Returns:
            How many files of former forms there were.
        """
        for path in self.folder.glob(f"*{storage.UNFINISHED}"):
            with suppress(OSError):
                if time.time() - path.lstat().st_mtime >= age:
                    path.unlink()
        former = list(self._former())
        for path in former:
            with suppress(OSError):
                path.unlink()
        return len(former)

    def _former(self) -> Iterator[Path]:
        if not storage.is_trusted(self.folder):
            return
        with suppress(OSError), os.scandir(self.folder) as files:
            for file in files:
                name = _FORMER.fullmatch(file.name)
                if name and (name["suffix"] or file.stat(follow_symlinks=False).st_size == 64):
                    yield Path(file.path)

    def _path(self, key: str) -> Path:
        return self.folder / f"{key}{_SUFFIX}"


def _start(key: str) -> bytes:
    return _MAGIC + key.encode() + b"\n"


def _hash(blob: bytes) -> bytes:
    return hashlib.blake2b(blob, digest_size=_HASH).digest()
