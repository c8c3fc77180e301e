"""Work that is left for later: by finalizers, and by operations that something interrupted.

Finalizers run at any moment, also inside a locked region, where the garbage collector called them.
So they only enqueue. The queue is worked off outside every lock, at once where that is safe and at
the next operation where it is not.

An exception may come from outside at any moment, such as KeyboardInterrupt. So an action stays in
the queue until it has returned, and has to be one that does no harm when it is done again.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Sized

from pjrt_bridge.runtime.dispatch import native
from pjrt_bridge.runtime.ownership import callbacks, pending
from pjrt_bridge.runtime.ownership.process import process

# None once the interpreter has cleared this module, which objects that torch holds outlive. It
# clears in this order, so nothing below is None before this is.
_there: bool | None = True
# Who drains is first in line. Both steps are one call of C each, so an exception from outside
# cannot come between getting in line and knowing of it.
_line: list[object] = []

inbox: deque[Callable[[], None]] = deque()
"""Actions that wait, oldest first. Only `drain` takes something out."""

left_behind: tuple[Sized, ...] = (inbox, pending.queue)
"""What `tidy` is there for: there is something to do where one of these is not empty."""


def defer(action: Callable[[], None], *, later: bool = False) -> None:
    """Do `action` soon: for finalizers, which must not wait for locks.

    This thread may be inside a locked region of this folder, where the garbage collector called
    it; only then, or when another thread is, the action waits for the next operation. With `later`
    it waits anyway, for threads that a plugin calls back on.

    Args:
        action: does nothing more when it is done again.
        later: leave it to the next operation.
    """
    if _there and process.open:
        inbox.append(action)
        if not (later or process.lock.locked()):
            drain()


def tidy() -> None:
    """Do what was left behind, if there is anything; for whatever makes or ends plugin objects."""
    if inbox or pending.queue:
        drain()


def drain(*, patient: bool = False) -> None:
    """Do what finalizers left behind, and give back host memory that plugins are done with.

    Does nothing where another thread, or this one further up, is at it, or where the process ends
    and another thread is at that.

    Args:
        patient: ask for every loan; else stop at the first that is not over.
    """
    if (callbacks.threads and callbacks.inside()) or (
        process.closer is not None and process.closed_to_this_thread()
    ):
        return
    while process.open:
        me = object()
        try:
            _line.append(me)
            if _line[0] is not me:
                return
            while inbox:
                inbox[0]()
                inbox.popleft()
            if pending.queue:
                pending.settle(patient=patient)
            if native.module is not None:
                native.module.settle()
        finally:
            _line.remove(me)
        # Something may have come in between the last look and leaving the line.
        if not inbox:
            return


def _start_again_in_child() -> None:
    # Another thread of the parent may have been in line at the moment of the fork.
    _line.clear()


os.register_at_fork(after_in_child=_start_again_in_child)
