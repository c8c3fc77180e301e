"""Compilations beside the calls, one after the other, on a thread.

A process that ends waits for the one that is under way: Python would end the thread of a daemon
inside of the C++ that compiles, which ends the process with an abort.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from pjrt_bridge import environment

WAITING = 64
"""How many compilations may be in the queue."""


class Background:
    """A queue of compilations, and the thread that does them one after the other."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._works: deque[Callable[[], None]] = deque()
        self._running = False

    @property
    def is_off(self) -> bool:
        """Whether the user turned compilation in the background off."""
        return environment.is_off(environment.BACKGROUND_VARIABLE)

    def begin(self, work: Callable[[], None], *, limited: bool = True) -> bool:
        """Queue a compilation; False where the queue is full, or no thread can be started.

        Args:
            work: raises nothing.
            limited: whether the queue can be full; otherwise it takes any number.
        """
        with self._lock:
            if limited and len(self._works) >= WAITING:
                return False
            self._works.append(work)
            if self._running:
                return True
            self._running = True
        try:
            threading.Thread(target=self._run, name="pjrt_bridge background").start()
        except RuntimeError:
            # The interpreter ends.
            with self._lock:
                self._running = False
                self._works.clear()
            return False
        return True

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._works or not threading.main_thread().is_alive():
                    self._works.clear()
                    self._running = False
                    return
                work = self._works.popleft()
            work()
            # Not held while the next one is waited for.
            del work


BACKGROUND = Background()
