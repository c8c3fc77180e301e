"""The device of a thread, which `torch.device("pjrt")` without an index stands for."""

from __future__ import annotations

import threading

_current = threading.local()


def current_index() -> int:
    """The index of the current device of this thread."""
    return getattr(_current, "index", 0)


def set_current_index(index: int) -> int:
    """Change it; the index before."""
    before = current_index()
    _current.index = index
    return before
