"""Checks of addresses by the process's memory map, before anything is read or jumped to.

Only Linux tells (`/proc/self/maps`); elsewhere no address is checked.
"""

from __future__ import annotations

import bisect
from dataclasses import dataclass
from pathlib import Path

_MAPS = Path("/proc/self/maps")


@dataclass(frozen=True, slots=True)
class MemoryMap:
    """The mapped ranges of this process at one moment, sorted by address."""

    starts: tuple[int, ...]
    ends: tuple[int, ...]
    permissions: tuple[str, ...]

    @staticmethod
    def now() -> MemoryMap | None:
        """The current map, or None where the system does not tell."""
        try:
            lines = _MAPS.read_text().splitlines()
        except OSError:
            return None
        starts, ends, permissions = [], [], []
        for line in lines:
            span, flags = line.split(maxsplit=2)[:2]
            start, _, end = span.partition("-")
            starts.append(int(start, 16))
            ends.append(int(end, 16))
            permissions.append(flags)
        return MemoryMap(tuple(starts), tuple(ends), tuple(permissions))

    def allows(self, address: int, size: int, permission: str) -> bool:
        """Whether all of [address, address + size) is mapped with `permission` (r, w or x)."""
        end = address + size
        while address < end:
            index = bisect.bisect_right(self.starts, address) - 1
            if (
                index < 0
                or address >= self.ends[index]
                or permission not in self.permissions[index]
            ):
                return False
            address = self.ends[index]
        return True
