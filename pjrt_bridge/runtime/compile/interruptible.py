"""Compilations that Ctrl-C does not have to wait for.

Python handles signals in its main thread, between two instructions, and a thread that is in a
function of a plugin comes to none for as long as that compiles. So the main thread leaves
compilations to a thread of their own. Interrupted, it goes on; the compilation ends on its thread,
and what it gives is destroyed there.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextvars import Context, copy_context
from typing import TypeVar

from pjrt_bridge.runtime.ownership.process import process

_T = TypeVar("_T")


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
    future: Future[_T] = Future()
    work = threading.Thread(
        target=_work,
        args=(copy_context(), function, future),
        name="pjrt_bridge compilation",
        daemon=True,
    )
    try:
        work.start()
    except RuntimeError:
        # No thread can be started any more when the interpreter ends.
        return function()
    try:
        return future.result()
    finally:
        # An exception's traceback holds this frame, and would hold itself through it.
        del future


def _work(context: Context, function: Callable[[], _T], future: Future[_T]) -> None:
    try:
        found = context.run(function)
    except BaseException as error:
        future.set_exception(error)
    else:
        future.set_result(found)
