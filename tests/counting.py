"""Counting plugin objects, and the memory of the process."""

from __future__ import annotations

import gc
import os
from collections.abc import Mapping
from pathlib import Path

from pjrt_bridge.runtime import live_handles


def settled() -> Mapping[str, int]:
    """What is alive of each kind, once the garbage of earlier tests is gone.

    It would go at any time, and a count from before it would be too high.
    """
    gc.collect()
    return live_handles()


def resident() -> int:
    """Bytes of memory that the process has, on Linux."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
