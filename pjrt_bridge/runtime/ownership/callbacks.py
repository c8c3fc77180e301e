"""Threads that a plugin calls back: they must not call the plugin, which may wait for them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from pjrt_bridge.errors import PjrtBridgeError

threads: set[int] = set()
"""Identifiers of the threads that are inside a callback."""


@contextmanager
def calling_back() -> Iterator[None]:
    """Mark this thread for the length of a `with` block."""
    here = threading.get_ident()
    try:
        threads.add(here)
        yield
    finally:
        threads.discard(here)


def inside() -> bool:
    """Whether a plugin called this thread."""
    return bool(threads) and threading.get_ident() in threads


def check() -> None:
    """Refuse to go on inside a callback.

    Raises:
        PjrtBridgeError: a plugin called this thread.
    """
    if inside():
        raise PjrtBridgeError(
            "a function that a plugin calls back must not use buffers, executables or clients: "
            "the plugin may be waiting for it"
        )
