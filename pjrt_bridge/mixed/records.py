"""Graph records and the ledger: how each graph was compiled, placed and run, for reports."""

from __future__ import annotations

import weakref
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Literal

from pjrt_bridge import timeline, user_warnings
from pjrt_bridge.errors import BridgeWarning, HostFallbackWarning
from pjrt_bridge.mixed.execution import CallRecord
from pjrt_bridge.report.data import Exchange, GraphReport, SegmentReport
from pjrt_bridge.report.fallback_reason import FallbackReason


@dataclass(eq=False)
class SegmentRecord:
    """A segment: see `SegmentReport`, which has the same attributes.

    Attributes:
        nodes: names of the graph's nodes in it.
        exchanging: gives what the devices of a mesh exchange in a run of it, while it is compiled.
    """

    placement: Literal["device", "host"]
    operators: Counter[str]
    nodes: tuple[str, ...] = ()
    fallback_reasons: list[FallbackReason] = field(default_factory=list)
    reads: tuple[int, ...] = ()
    takes_arguments: bool = True
    gives_results: bool = True
    compile_seconds: float = 0.0
    cached: bool = False
    renewed: int = 0
    exchanging: Callable[[], tuple[Exchange, ...]] = tuple

    def failed(self, reason: str) -> None:
        """Note why the device could not do it after all."""
        failure = FallbackReason("", reason, "failed")
        if failure not in self.fallback_reasons:
            self.fallback_reasons.append(failure)


@dataclass(eq=False)
class GraphRecord:
    """A compiled graph.

    Attributes:
        kind: `"inference"`, `"forward"` or `"backward"`.
        name: tells it from the other graphs of the same code.
        plugin: name of the plugin.
        code: which code the framework compiled, and the how-manieth time; None where it tells none.
        division: the user's line at which the framework ended it, and why; None where its function
            ends there.
        trigger: what made the bridge compile it again for other sizes; None otherwise.
        within: the record of the graph whose segment it specializes.
        segments: in running order.
        lowering_seconds: time from the graph to StableHLO.
        last: the last call that ended.
        recent: gives a later one that went past all this, if there was any.
    """

    kind: str
    name: str
    plugin: str
    trigger: str | None = None
    within: GraphRecord | None = None
    segments: list[SegmentRecord] = field(default_factory=list)
    lowering_seconds: float = 0.0
    last: CallRecord | None = None
    recent: Callable[[], CallRecord | None] | None = None
    code: tuple[int, int] | None = None
    division: str | None = None

    def follow(self, last: Callable[[], CallRecord | None]) -> None:
        """Have a method tell of the calls on the fast path, for as long as its object lives.

        Ledgers keep records for longer than functions live.
        """
        method = weakref.WeakMethod(last)
        self.recent = lambda: found() if (found := method()) else None

    def report(
        self, call: CallRecord | None = None, trigger: str | None = None, *, ran: bool = True
    ) -> GraphReport:
        """What is known now; bytes and times are those of a call, by default of the last."""
        recent = None if self.recent is None else self.recent()
        call = call or recent or self.last or CallRecord(len(self.segments))
        return GraphReport(
            name=self.name,
            kind=self.kind,
            plugin=self.plugin,
            lowering_seconds=self.lowering_seconds,
            trigger=self.trigger or trigger,
            ran=ran,
            within=None if self.within is None else self.within.name,
            segments=tuple(
                SegmentReport(
                    placement=segment.placement,
                    operators=dict(segment.operators.most_common()),
                    fallback_reasons=tuple(segment.fallback_reasons),
                    reads=segment.reads,
                    takes_arguments=segment.takes_arguments,
                    gives_results=segment.gives_results,
                    compile_seconds=segment.compile_seconds,
                    cached=segment.cached,
                    renewed=segment.renewed,
                    bytes_shared=call.shared[at],
                    bytes_copied=call.copied[at],
                    run_seconds=None if call.seconds is None else call.seconds[at],
                    exchanges=segment.exchanging(),
                )
                for at, segment in enumerate(self.segments)
            ),
        )


class Ledger:
    """The graph records of a framework's compiler since the last reset, and its warnings."""

    def __init__(self) -> None:
        self._graphs: deque[GraphRecord] = deque(maxlen=1000)
        self._warned: set[str] = set()

    def add(self, record: GraphRecord) -> None:
        """Keep the record of a graph that was compiled."""
        self._graphs.append(record)

    @property
    def graphs(self) -> tuple[GraphRecord, ...]:
        """The graphs that were compiled since the last reset, oldest first (the last 1000)."""
        return tuple(self._graphs)

    def forget(self) -> None:
        """Forget all graphs, and which warnings were given."""
        self._graphs.clear()
        self._warned.clear()

    def warn_once(self, text: str, kind: type[BridgeWarning] = HostFallbackWarning) -> None:
        """Warn of something, unless it was said before."""
        if text not in self._warned:
            self._warned.add(text)
            user_warnings.warn(text, kind)


class Watch:
    """Calls that happen in a `with watching()` block.

    Attributes:
        calls: the last call of each graph that ran, in the order of their first calls.
    """

    def __init__(self) -> None:
        self.calls: dict[GraphRecord, CallRecord] = {}


_watch: ContextVar[Watch | None] = ContextVar("watch", default=None)


@contextmanager
def watching() -> Iterator[Watch]:
    """In this thread, run segment after segment and take the time of each."""
    watch = Watch()
    token = _watch.set(watch)
    try:
        with timeline.observing(watch):
            yield watch
    finally:
        _watch.reset(token)


def begin(record: GraphRecord, outer: CallRecord | None) -> CallRecord:
    """A call of a graph, which may be a segment of a graph that is being called."""
    timed = _watch.get() is not None or timeline.current is not None
    return CallRecord(len(record.segments), timed=timed, outer=outer)


def end(record: GraphRecord, call: CallRecord) -> None:
    """Keep a call that ended well."""
    record.last = call
    if timeline.current is not None:
        _add_to_timeline(timeline.current, record, call)
    watch = _watch.get()
    if watch is not None:
        watch.calls[record] = call


def _add_to_timeline(recorded: timeline.Timeline, record: GraphRecord, call: CallRecord) -> None:
    """Put the segments of a call on the timeline."""
    for at, (segment, seconds) in enumerate(zip(record.segments, call.seconds or (), strict=False)):
        name = record.name if len(record.segments) == 1 else f"{record.name} segment {at}"
        start = call.started[at]
        recorded.add(
            name,
            start,
            start + int(seconds * 1e9),
            track=f"device {record.plugin}" if segment.placement == "device" else None,
            nodes=", ".join(segment.nodes),
            operators=", ".join(segment.operators),
            bytes_shared=call.shared[at],
            bytes_copied=call.copied[at],
        )
