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
"""What a thread did itself; the system ends a process that blocks them."""

_OTHERS = signal.valid_signals() - _OWN


class _Thread(threading.local):
    """What this thread blocks outside `blocked`."""

    mask: frozenset[int] | None = None


_thread = _Thread()


@contextmanager
def blocked() -> Iterator[None]:
    """Have threads that start within a `with` block block signals. This thread does so meanwhile.

    Signals that come wait until the block is over, or until `answered`.
    """
    # It also handles what came, which may raise: before anything is blocked.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    outside = _thread.mask
    try:
        _thread.mask = frozenset(before)
        signal.pthread_sigmask(signal.SIG_BLOCK, _OTHERS)
        yield
    finally:
        _thread.mask = outside
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def answered() -> Iterator[None]:
    """Have this thread see signals again within a `with` block, where a plugin calls it back."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        if _thread.mask is not None:
            signal.pthread_sigmask(signal.SIG_SETMASK, _thread.mask)
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
