"""Checks that end in every way that there is; tests add them to the suite."""

from __future__ import annotations

import atexit
import ctypes
import os
import signal
import stat
import time

from pjrt_bridge.errors import PjrtError
from pjrt_bridge.runtime.compile.compile_cache import compile_cache
from pjrt_bridge_conformance import AbsentDevice, Context, Fail, Group, Needs, Unsupported

GROUP = Group("misbehaving", needs=Needs.NOTHING)


@GROUP.check
def passes(context: Context) -> None:
    """It does nothing."""


@GROUP.check
def fails(context: Context) -> None:
    """It fails."""
    raise Fail("found 1, expected 2")


@GROUP.check
def unsupported(context: Context) -> None:
    """It lacks a feature."""
    raise Unsupported("not here")


@GROUP.check
def unimplemented(context: Context) -> None:
    """A plugin lacks a feature."""
    raise PjrtError.from_code(12, "not yet", plugin="mine", function="Nothing")


@GROUP.check
def absent(context: Context) -> None:
    """It lacks a device."""
    raise AbsentDevice("no second one")


@GROUP.check
def internal(context: Context) -> None:
    """A plugin gives an error."""
    raise PjrtError.from_code(13, "broken\ninside", plugin="mine", function="Nothing")


@GROUP.check
def raises(context: Context) -> None:
    """It has an error of its own."""
    raise ZeroDivisionError("by zero")


@GROUP.check
def aborts(context: Context) -> None:
    """It aborts, and says why."""
    os.write(2, b"F0000 Check failed: everything\n")
    os.abort()


@GROUP.check
def segfaults(context: Context) -> None:
    """It reads what is not there."""
    ctypes.string_at(8)


@GROUP.check
def exits(context: Context) -> None:
    """It ends the process as if all was well."""
    os._exit(0)


@GROUP.check
def is_killed(context: Context) -> None:
    """It is killed from outside."""
    os.kill(os.getpid(), signal.SIGKILL)


@GROUP.check
def hangs(context: Context) -> None:
    """It never ends."""
    time.sleep(600)


@GROUP.check
def chatters(context: Context) -> None:
    """It writes to standard output, as C and as Python."""
    print('{"name": "another"}', flush=True)
    os.write(1, b"noise\n")


@GROUP.check
def lies(context: Context) -> None:
    """It answers in the place of the worker."""
    for number in range(3, 32):
        try:
            if stat.S_ISFIFO(os.fstat(number).st_mode):
                os.write(number, b'{"name": "another", "status": "pass", "reason": ""}\n')
        except OSError:
            continue


@GROUP.check
def dies_at_the_end(context: Context) -> None:
    """It aborts when the process exits."""
    atexit.register(os.abort)


@GROUP.check
def stays_at_the_end(context: Context) -> None:
    """It keeps the process from exiting."""
    atexit.register(time.sleep, 600)


@GROUP.check
def has_no_cache(context: Context) -> None:
    """Programs are compiled, and not loaded."""
    if compile_cache() is not None:
        raise Fail("there is a cache of compiled programs")


@GROUP.each(["a", "b"])
def family(context: Context, item: str) -> None:
    """One of a family."""
    if item == "b":
        raise Fail("it is b")
