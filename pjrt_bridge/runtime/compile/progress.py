"""What takes long is said on standard error, on a terminal with the time that it has taken."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress

DELAY = 2.0
"""Seconds for which nothing is said."""

Say = Callable[[str], None]
"""What takes another text to show."""


@contextmanager
def working(text: str, *, in_files: bool = False, delay: float | None = None) -> Iterator[Say]:
    """Show a text, a moving sign and the time so far while a `with` block takes longer than usual.

    Args:
        text: what is under way.
        in_files: where standard error is no terminal, write the text as a line of its own; else
            nothing is written into files and logs.
        delay: seconds for which nothing is said; None: `DELAY`.

    Yields:
        What says another text from then on.
    """
    # Programs may have no standard error, or have closed it.
    open_ = sys.stderr is not None and not sys.stderr.closed
    if open_ and sys.stderr.isatty():
        shown: _Shown | _StatusLine = _Shown(text)
    elif open_ and in_files:
        shown = _StatusLine(text)
    else:
        yield lambda _: None
        return
    delay = DELAY if delay is None else delay
    timer = threading.Timer(delay, shown.start)
    timer.daemon = True
    if delay:
        timer.start()
    else:
        shown.start()
    try:
        yield shown.say
    finally:
        timer.cancel()
        shown.stop()


class _StatusLine:
    def __init__(self, text: str) -> None:
        self._text = text
        self._started = False

    def start(self) -> None:
        self._started = True
        # The stream may be closed by now, and this is a thread of its own.
        with suppress(OSError, ValueError):
            print(f"pjrt_bridge: {self._text}", file=sys.stderr, flush=True)

    def say(self, text: str) -> None:
        self._text = text
        if self._started:
            self.start()

    def stop(self) -> None:
        """A line stays."""


class _Shown:
    def __init__(self, text: str) -> None:
        self._text = text
        self._begun = time.monotonic()
        self._lock = threading.Lock()
        self._ended = False
        self._progress: Progress | None = None

    def start(self) -> None:
        # Not at the top: most programs never get here.
        from rich.console import Console
        from rich.errors import LiveError
        from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        with self._lock:
            if self._ended:
                return
            progress = Progress(
                SpinnerColumn(),
                TextColumn("{task.description}", markup=False),
                TimeElapsedColumn(),
                console=Console(stderr=True),
                get_time=time.monotonic,
                transient=True,
            )
            task = progress.add_task(self._text, total=None)
            progress.tasks[task].start_time = self._begun
            try:
                progress.start()
            except LiveError:
                # Something else is being shown already.
                return
            self._progress = progress

    def say(self, text: str) -> None:
        with self._lock:
            self._text = text
            if self._progress is not None:
                self._progress.update(self._progress.task_ids[0], description=text)

    def stop(self) -> None:
        with self._lock:
            self._ended = True
            if self._progress is not None:
                self._progress.stop()
