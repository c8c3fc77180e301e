"""Signals that threads of plugins leave to those of Python.

A thread blocks the signals that the thread blocked which started it. A signal that is sent to the
process is handled on any thread that does not block it, on the stack of that thread. oneDNN's
products of float32 for AVX-512, which XLA's CPU plugin calls, keep a pointer to the end of a buffer
in the stack register; what the system then writes for the handler, 3 KB and more, overwrites what
lies before the buffer. So threads of a plugin start with all signals blocked, except those that
report what a thread itself did.

Source: signal(7), "Execution of signal handlers" and "Signal mask and pending signals".
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_OWN = {
    signal.SIGABRT,
    signal.SIGBUS,
    signal.SIGFPE,
    signal.SIGILL,
    signal.SIGSEGV,
    signal.SIGSYS,
    signal.SIGTRAP,
}
"""They report what a thread did itself; where they are blocked, the system ends the process."""

_OTHERS = signal.valid_signals() - _OWN


class _Thread(threading.local):
    """What this thread blocked before `blocked`; None outside of that."""

    mask: set[int] | None = None


_thread = _Thread()


@contextmanager
def blocked() -> Iterator[None]:
    """Block signals in this thread for a `with` statement; threads that start in it keep that.

    Signals to this thread wait until the statement ends, or until `answered`.
    """
    # This handles signals that came before, which may raise: nothing is blocked yet.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    outside = _thread.mask
    try:
        _thread.mask = before
        signal.pthread_sigmask(signal.SIG_BLOCK, _OTHERS)
        yield
    finally:
        _thread.mask = outside
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def answered() -> Iterator[None]:
    """Handle signals again within a `with` statement inside of `blocked`: a plugin calls back."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        if _thread.mask is not None:
            signal.pthread_sigmask(signal.SIG_SETMASK, _thread.mask)
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
