"""A line on the terminal while something takes long."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

DELAY = 2.0
"""Seconds for which nothing is said."""


@contextmanager
def working(text: str) -> Iterator[None]:
    """Show a text and a moving sign while a `with` block takes longer than usual.

    Only on a terminal: nothing is written into files and logs.
    """
    if not sys.stderr.isatty():
        yield
        return
    shown = _Shown(text)
    timer = threading.Timer(DELAY, shown.start)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        shown.stop()


class _Shown:
    def __init__(self, text: str) -> None:
        self._text = text
        self._lock = threading.Lock()
        self._ended = False
        self._status: object = None

    def start(self) -> None:
        # Not at the top: most programs never get here.
        from rich.console import Console
        from rich.errors import LiveError

        with self._lock:
            if self._ended:
                return
            status = Console(stderr=True).status(self._text)
            try:
                status.start()
            except LiveError:
                # Something else is being shown already.
                return
            self._status = status

    def stop(self) -> None:
        from rich.status import Status

        with self._lock:
            self._ended = True
            if isinstance(self._status, Status):
                self._status.stop()
