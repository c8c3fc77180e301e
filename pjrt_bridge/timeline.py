"""The timeline of a profile: spans of time on tracks.

The bridge reports here what it does; nothing is kept, and nothing costs time, unless a timeline is
being recorded (`pjrt_bridge.profile`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field

Detail = str | int | float


@dataclass(frozen=True, slots=True)
class Span:
    """Something that took time.

    Attributes:
        name: what was done.
        track: where: a thread of the host, or a device.
        start: in nanoseconds since 1970.
        end: the same.
        details: what else is known of it.
    """

    name: str
    track: str
    start: int
    end: int
    details: Mapping[str, Detail] = field(default_factory=dict)


class Timeline:
    """Spans, in the order of their ends; any thread may add some."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        # The clock of spans never goes back; it is set by the wall clock once.
        self._offset = time.time_ns() - time.perf_counter_ns()

    def add(
        self, name: str, start: int, end: int, *, track: str | None = None, **details: Detail
    ) -> None:
        """Add a span.

        Args:
            name: what was done.
            start: from `time.perf_counter_ns`.
            end: the same.
            track: by default the current thread.
            details: what else is known of it.
        """
        where = track or threading.current_thread().name
        self.spans.append(Span(name, where, start + self._offset, end + self._offset, details))


current: Timeline | None = None
"""The timeline that is being recorded."""

observers: list[object] = []
"""The timeline that is being recorded, and other observers of calls; empty: calls may skip what
only these need."""


def span(
    name: str, *, track: str | None = None, **details: Detail
) -> AbstractContextManager[object]:
    """Add the time of a `with` block to the timeline, if there is one; also where it raises."""
    return _NOTHING if current is None else _timed(current, name, track, details)


_NOTHING = nullcontext()


@contextmanager
def _timed(
    timeline: Timeline, name: str, track: str | None, details: Mapping[str, Detail]
) -> Iterator[None]:
    start = time.perf_counter_ns()
    try:
        yield
    finally:
        timeline.add(name, start, time.perf_counter_ns(), track=track, **details)


@contextmanager
def recording() -> Iterator[Timeline]:
    """Record a timeline during a `with` block.

    Raises:
        RuntimeError: one is being recorded already.
    """
    global current
    made = Timeline()
    with _lock:
        if current is not None:
            raise RuntimeError("a timeline is being recorded already; end that profile first")
        current = made
    try:
        with observing(made):
            yield made
    finally:
        current = None


@contextmanager
def observing(observer: object) -> Iterator[None]:
    """Register an observer during a `with` block."""
    # Where the block ends in the interpreter's shutdown, this module's names are gone already.
    registered = observers
    registered.append(observer)
    try:
        yield
    finally:
        registered.remove(observer)


_lock = threading.Lock()
