"""The exit of the process, and how many plugin objects are alive in it.

Plugins' libraries are unloaded with the process, while their threads may still run. So the
interpreter waits before it exits until no plugin is at work any more, for a minute at most.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import sys
import threading
import time
import traceback
from collections import Counter
from pathlib import Path

from pjrt_bridge.abi.api import Api, restrict_calls
from pjrt_bridge.runtime import native
from pjrt_bridge.runtime.ownership import pending
from pjrt_bridge.runtime.ownership.buffers import BufferHandle
from pjrt_bridge.runtime.ownership.deferred import drain
from pjrt_bridge.runtime.ownership.handles import BUNDLE, owned, pin_where, unpin_all
from pjrt_bridge.runtime.ownership.process import process
from pjrt_bridge.runtime.ownership.waiting import await_event

_STEP = 0.001
"""Seconds between two questions whether a plugin is at work."""

_GRACE = 2
"""Seconds for threads that are in the runtime and in no plugin, where they wait for something."""

_MESSAGE_AFTER = 10
"""Seconds of waiting after which a message is printed."""

_LONGEST = 60
"""Seconds of waiting after which the process ends under what plugins do: nobody can read what comes
of it."""

_MESSAGE = (
    "pjrt_bridge: the program has ended, and waits for what plugins still compute or compile, "
    "for {} more seconds at most; nothing new begins. Ctrl-C ends the process at once"
)
_LEFT = "pjrt_bridge: the process ends under what plugins still compute or compile"

_CALL, _WAIT = Api.invoke.__code__, await_event.__code__
_RUNTIME = str(Path(await_event.__code__.co_filename).parents[1]) + os.sep


def live() -> dict[str, int]:
    """Number of plugin objects that the bridge owns at this moment, by kind; zeros left out.

    Drains the queues first, so the numbers are exact when no other thread is inside a call and
    no execution is under way.
    """
    drain(patient=True)
    found = Counter(handle.kind for handle in owned())
    del found[BUNDLE]
    if native.module is not None:
        buffers, events = native.module.live()
        found["Buffer"] += buffers
        found["Event"] += events
    return {kind: count for kind, count in found.items() if count}


def _stop() -> None:
    """Wait for what plugins do, before their libraries are unloaded with the process.

    A program that runs would go on in memory that is unmapped. Ctrl-C interrupts this, as any other
    wait.
    """
    idle = False
    process.closer = threading.get_ident()
    if native.module is not None:
        native.module.close()
    try:
        # Threads finish what they are in, and begin nothing.
        end = time.monotonic() + _LONGEST
        idle = _wait_until_idle(end)
        # What needs no pin, such as making a client, may have begun since.
        restrict_calls(process.closer)
        idle = idle and _wait_until_idle(end)
        if not idle:
            print(_LEFT, file=sys.stderr, flush=True)
    finally:
        if not idle:
            _unload_nothing()
        process.open = False
        if native.module is not None:
            native.module.end()
    while idle and native.module is not None and native.module.busy():
        time.sleep(_STEP)


def _unload_nothing() -> None:
    """Have the process end without what C libraries do at the exit.

    Threads of plugins may be at work until then. Their memory stays, and the exit status is what it
    would be: the interpreter finishes first. Where the C library is not glibc nothing is changed.
    """
    kept = [pending.queue, pending.lost, *owned()]
    # Python clears modules before the process ends, and this would go with them.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))
    library = ctypes.CDLL(None)
    # on_exit(3) hands on the exit status, which is all that _exit(2) reads.
    if hasattr(library, "on_exit"):
        library.on_exit(library._exit, None)


def _wait_until_idle(end: float) -> bool:
    """Wait until no plugin is at work, and for a while for threads that are about to call one.

    Args:
        end: when to give up, in seconds of the monotonic clock.

    Returns:
        Whether no plugin is at work.
    """
    begun, since, said = time.monotonic(), None, False
    while True:
        # In this order: what a thread has begun is seen below once it is not seen here.
        calling, inside = _other_threads()
        if calling or are_plugins_at_work():
            since = None
        elif not inside:
            return True
        elif since is None:
            since = time.monotonic()
        elif time.monotonic() - since > _GRACE:
            return True
        now = time.monotonic()
        if now > end:
            return False
        if not said and now - begun > _MESSAGE_AFTER:
            said = True
            print(_MESSAGE.format(round(end - now)), file=sys.stderr, flush=True)
        time.sleep(_STEP)


def _other_threads() -> tuple[bool, bool]:
    """Whether another thread is in a call to a plugin, and whether one is in the runtime.

    A thread that waits for an event is in the runtime only: the event may never come, and where it
    comes after an execution, that is waited for.
    """
    me = threading.get_ident()
    calling = inside = False
    for thread, top in sys._current_frames().items():
        if thread != me:
            codes = {frame.f_code for frame, _ in traceback.walk_stack(top)}
            calling = calling or (_CALL in codes and _WAIT not in codes)
            inside = inside or any(code.co_filename.startswith(_RUNTIME) for code in codes)
    return calling, inside


def are_plugins_at_work() -> bool:
    """Whether an execution or a transfer is under way, or a thread is in the dispatcher."""
    dispatcher = native.module is not None and native.module.busy()
    drain(patient=True)
    running = pin_where(lambda handle: isinstance(handle, BufferHandle) and handle.running)
    try:
        for buffer in running:
            assert isinstance(buffer, BufferHandle)
            buffer.watch()
    finally:
        unpin_all(running)
    return dispatcher or bool(pending.queue)


def _forked() -> None:
    if native.module is not None:
        native.module.forked()


atexit.register(_stop)
os.register_at_fork(after_in_child=_forked)
