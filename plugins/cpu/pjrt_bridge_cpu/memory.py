"""Memory that a call frees, and the next one takes again.

The C library of Linux takes large blocks from the system and gives them back, and so each page that
a call writes to is a fault: half of the time of a convolution whose result has 6 MB. What counts as
large it learns from the blocks that a program frees (`mallopt(3)`, M_MMAP_THRESHOLD: "dynamic"), up
to 32 MB. A process that has freed one such block keeps up to 64 MB for its next calls.

Threads have memory in parts of 64 MB, and one that is empty goes back to the system unless the part
before it has less than M_TOP_PAD left (malloc/arena.c, `heap_trim`). A program whose blocks do not
fit in the rest of a part would take a new one with each call.

The variable `PJRT_BRIDGE_MALLOC` turns it `off`.
"""

from __future__ import annotations

import ctypes
import os
from functools import cache

from pjrt_bridge import environment

VARIABLE = "PJRT_BRIDGE_MALLOC"
LARGEST = 32 << 20
"""Bytes of the largest block that the C library learns from (DEFAULT_MMAP_THRESHOLD_MAX)."""

_ROOM = 1 << 16
"""For the block's header and for whole pages, of any size."""

_TOP_PAD = -2
"""`M_TOP_PAD` of malloc.h."""


@cache
def keep_freed() -> None:
    """Let the C library learn from a block of the largest size, once in a process.

    Nothing is written to it. And let it keep a thread's part of memory that is empty, if blocks up
    to that size may not fit in the part before it. This changes nothing where the user has turned
    it off or has set the thresholds (MALLOC_MMAP_THRESHOLD_ and the like, GLIBC_TUNABLES), or the C
    library is another one.
    """
    set_by_user = any(name.startswith("MALLOC_") for name in os.environ)
    set_by_user = set_by_user or "glibc.malloc" in os.environ.get("GLIBC_TUNABLES", "")
    if environment.is_off(VARIABLE) or set_by_user:
        return
    library = ctypes.CDLL(None)
    if not hasattr(library, "gnu_get_libc_version"):
        return
    library.malloc.restype = ctypes.c_void_p
    library.malloc.argtypes = (ctypes.c_size_t,)
    library.free.argtypes = (ctypes.c_void_p,)
    library.free(library.malloc(LARGEST - _ROOM))
    library.mallopt.argtypes = (ctypes.c_int, ctypes.c_int)
    library.mallopt(_TOP_PAD, LARGEST)
