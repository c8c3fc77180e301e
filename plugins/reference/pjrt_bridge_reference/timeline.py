"""The timeline of the devices' work, recorded while a profile is taken."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from pjrt_bridge.timeline import Timeline

_lock = threading.Lock()
_recorded: list[Timeline] = []


def start(timeline: Timeline) -> None:
    """Record what ends from now on."""
    with _lock:
        _recorded.append(timeline)


def stop(timeline: Timeline) -> None:
    """Record no more; a timeline that is not recorded stays as it is."""
    with _lock:
        if timeline in _recorded:
            _recorded.remove(timeline)


@contextmanager
def span(track: str, name: str) -> Iterator[None]:
    """Record the body of a `with` statement on a track, if a profile is taken."""
    if not _recorded:
        yield
        return
    begun = time.perf_counter_ns()
    try:
        yield
    finally:
        ended = time.perf_counter_ns()
        with _lock:
            for timeline in _recorded:
                timeline.add(name, begun, ended, track=track)
