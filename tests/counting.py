"""Counting plugin objects, the memory of the process, and calls of functions."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType

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


def calls(function: Callable[[], object]) -> int:
    """How many functions, of Python and of C, a call of a function calls in this thread.

    A measure of work that no other process changes.
    """
    count = 0

    def note(frame: FrameType, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        function()
    finally:
        sys.setprofile(before)
    return count
