"""A line on standard error while something takes long."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

DELAY = 2.0
"""Seconds for which nothing is said."""


@contextmanager
def working(text: str, *, in_files: bool = False) -> Iterator[None]:
    """Show a text and a moving sign while a `with` block takes longer than usual.

    Args:
        text: what is under way.
        in_files: where standard error is no terminal, write the text as a line of its own; else
            nothing is written into files and logs.
    """
    # Programs may have no standard error, or have closed it.
    open_ = sys.stderr is not None and not sys.stderr.closed
    if open_ and sys.stderr.isatty():
        shown: _Shown | _StatusLine = _Shown(text)
    elif open_ and in_files:
        shown = _StatusLine(text)
    else:
        yield
        return
    timer = threading.Timer(DELAY, shown.start)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        shown.stop()


class _StatusLine:
    def __init__(self, text: str) -> None:
        self._text = text

    def start(self) -> None:
        # The stream may be closed by now, and this is a thread of its own.
        with suppress(OSError, ValueError):
            print(f"pjrt_bridge: {self._text}", file=sys.stderr, flush=True)

    def stop(self) -> None:
        """A line stays."""


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
