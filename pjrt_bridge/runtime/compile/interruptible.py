"""Compilations that Ctrl-C does not have to wait for.

Python handles signals in its main thread, between two instructions, and a thread that is in a
function of a plugin comes to none for as long as that compiles. So the main thread leaves
compilations to a thread of their own. Interrupted, it goes on; the compilation ends on its thread,
and what it gives is destroyed there.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextvars import Context, copy_context
from queue import SimpleQueue
from typing import TypeVar, cast

from pjrt_bridge.runtime.ownership.process import process
from pjrt_bridge.runtime.ownership.signals import blocked

_T = TypeVar("_T")

# What a function gave, or what it raised. A Future is no place for it: an exception that comes
# while a thread takes its lock leaves the lock taken, and the other thread waits for ever with what
# it compiled. This queue is one step of C.
_OutcomeQueue = SimpleQueue[tuple[object, BaseException | None]]


def interruptible(function: Callable[[], _T]) -> _T:
    """Call a function, on another thread where this is the main one.

    Raises:
        KeyboardInterrupt: Ctrl-C was pressed; the function goes on.
        BaseException: what the function raised.
    """
    # During the exit other threads may call no plugin.
    ending = process.closer is not None
    if ending or threading.current_thread() is not threading.main_thread():
        return function()
    outcome: _OutcomeQueue = SimpleQueue()
    work = threading.Thread(
        target=_work,
        args=(copy_context(), function, outcome),
        name="pjrt_bridge compilation",
        daemon=True,
    )
    try:
        work.start()
    except RuntimeError:
        # No thread can be started any more when the interpreter ends.
        return function()
    found, error = outcome.get()
    try:
        if error is not None:
            raise error
        return cast(_T, found)
    finally:
        # The exception's traceback holds this frame, and would hold itself through it.
        del error


def _work(context: Context, function: Callable[[], _T], outcome: _OutcomeQueue) -> None:
    try:
        with blocked():
            # No name here holds what the function gave: the other thread may go on before this one
            # ends, and is to be the only one that holds it.
            outcome.put((context.run(function), None))
    except BaseException as error:
        outcome.put((None, error))
