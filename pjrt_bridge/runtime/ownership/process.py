"""The state of the process that this folder shares: its lock, and whether plugins may be called."""

from __future__ import annotations

import os
import threading


class Process:
    """The one process.

    Attributes:
        lock: guards what handles know of each other. It is not re-entrant on purpose: a finalizer
            that a garbage collection starts inside a locked region finds the lock taken and leaves
            its work for later (see `runtime.ownership.deferred`).
        open: plugins may be called; not once the exit handlers have run.
        closer: thread that runs the exit handlers; operations of others end with their thread from
            then on.
    """

    __slots__ = ("closer", "lock", "open")

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.open = True
        self.closer: int | None = None

    def closed_to_this_thread(self) -> bool:
        """Whether another thread runs the exit handlers."""
        return self.closer is not None and self.closer != threading.get_ident()


process = Process()


def plugins_are_there() -> bool:
    """Whether plugins may be called: not once the interpreter is past its exit handlers."""
    # The interpreter clears the names of modules, too.
    return bool(process and process.open)


def _start_again_in_child() -> None:
    # Another thread of the parent may have held it at the moment of the fork.
    process.lock = threading.Lock()


os.register_at_fork(after_in_child=_start_again_in_child)
