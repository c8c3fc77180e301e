"""Records of graphs and segments while they are compiled."""

from __future__ import annotations

import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager

from pjrt_bridge.mixed.records import GraphRecord, SegmentRecord
from pjrt_bridge.report.data import Exchange
from pjrt_bridge.runtime import Executable, ShardedExecutable
from pjrt_bridge.torch_interop.placement.split import Part, node_names, operators


def segment_record(part: Part) -> SegmentRecord:
    """The record of a part, before it is compiled."""
    return SegmentRecord(
        placement="device" if part.on_device else "host",
        operators=operators(part.module.graph),
        nodes=node_names(part.module.graph),
        fallback_reasons=list(part.fallback_reasons),
        reads=part.reads,
        takes_arguments=any(at is not None for at in part.arguments),
        gives_results=part.gives_results,
    )


def note_executable(segment: SegmentRecord, executable: ShardedExecutable, seconds: float) -> None:
    """Note what a segment over a mesh was compiled to, for the shardings of a call."""
    segment.compile_seconds += seconds
    segment.cached = executable.executable.cached
    note_exchanges(segment, executable.executable)


def note_exchanges(segment: SegmentRecord, executable: Executable) -> None:
    """Have a record tell the collective operations of an executable, while that is there."""
    # Records are kept for longer than functions live.
    last = weakref.ref(executable)

    def exchanging() -> tuple[Exchange, ...]:
        found = last()
        known = () if found is None else found.collectives()
        return tuple(Exchange(one.operation, one.count, one.nbytes) for one in known)

    segment.exchanging = exchanging


def note_renewal(segment: SegmentRecord) -> None:
    """Note that the program of a segment was compiled again and replaced."""
    segment.renewed += 1


def name_of_segment(record: GraphRecord) -> str:
    """The name of a segment of a graph in messages."""
    whole = len(record.segments) == 1
    return f"the {record.kind} graph" if whole else f"a segment of the {record.kind} graph"


@contextmanager
def counting(where: GraphRecord | SegmentRecord, seconds: str) -> Iterator[None]:
    """Add the time of a `with` block to an attribute."""
    started = time.perf_counter()
    try:
        yield
    finally:
        setattr(where, seconds, getattr(where, seconds) + time.perf_counter() - started)
