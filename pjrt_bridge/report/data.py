"""The data of a report, filled in by a framework's package: segments, graphs, the program."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from pjrt_bridge.report.fallback_reason import FallbackReason

FrameworkName = Literal["tensorflow", "torch"]

EXPORTED = "exported"
"""`GraphReport.kind` of a saved program; what a call of it costs is not known."""


@dataclass(frozen=True)
class Exchange:
    """A collective operation of a segment over several devices.

    Attributes:
        operation: `all-reduce`, `all-gather`, ...
        count: how often it stands in the program.
        nbytes: that each device gets from all of them.
    """

    operation: str
    count: int
    nbytes: int


@dataclass(frozen=True)
class SegmentReport:
    """Nodes of a graph that run together.

    Attributes:
        placement: where they run.
        operators: how often each operator occurs.
        fallback_reasons: why it is on the host; for a device segment the failures that the host
            recovered from.
        reads: indices of segments of this graph whose results it takes.
        takes_arguments: whether it reads arguments of the graph.
        gives_results: whether the caller gets results of it.
        bytes_shared: bytes that crossed to or from the device in place, in the last call.
        bytes_copied: bytes that had to be copied to cross, in the last call.
        compile_seconds: the plugin's compilation, in seconds.
        cached: its executable was loaded from the compile cache.
        renewed: how often it was compiled again since, with kernels that were found fast later.
        run_seconds: one run, until its results are ready, in seconds; None where not measured.
        exchanges: what the devices of a mesh, or of several processes, exchange in one run.
    """

    placement: Literal["device", "host"]
    operators: Mapping[str, int]
    fallback_reasons: tuple[FallbackReason, ...] = ()
    reads: tuple[int, ...] = ()
    takes_arguments: bool = False
    gives_results: bool = False
    bytes_shared: int = 0
    bytes_copied: int = 0
    compile_seconds: float = 0.0
    cached: bool = False
    renewed: int = 0
    run_seconds: float | None = None
    exchanges: tuple[Exchange, ...] = ()


@dataclass(frozen=True)
class GraphReport:
    """One graph that the framework handed over.

    Attributes:
        name: unique within a report.
        kind: `"inference"`, `"forward"` or `"backward"`; `EXPORTED` for a saved program.
        plugin: name of the plugin.
        segments: in running order.
        lowering_seconds: time from the framework's graph to StableHLO.
        trigger: why it was compiled again, although it or another graph of the same code had been
            compiled before; None for the first time.
        ran: whether the reported call ran it; otherwise it is listed for its compilation.
        within: name of the graph of which it is one segment, specialized to the sizes of the call;
            that graph's report counts what it ran.
    """

    name: str
    kind: str
    plugin: str
    segments: tuple[SegmentReport, ...]
    lowering_seconds: float = 0.0
    trigger: str | None = None
    ran: bool = True
    within: str | None = None

    @property
    def on_device(self) -> int:
        """How many segments run on the device."""
        return sum(segment.placement == "device" for segment in self.segments)

    @property
    def operations(self) -> int:
        """Number of operators; those that several segments recompute count in each."""
        return sum(sum(segment.operators.values()) for segment in self.segments)

    @property
    def fallback_reasons(self) -> tuple[FallbackReason, ...]:
        """Why parts of it run on the host."""
        return tuple(found for segment in self.segments for found in segment.fallback_reasons)

    @property
    def compile_seconds(self) -> float:
        """The plugin's compilation of all segments, in seconds."""
        return sum(segment.compile_seconds for segment in self.segments)

    @property
    def run_seconds(self) -> float | None:
        """The runs of all segments, in seconds; None where one was not measured."""
        return total_seconds(segment.run_seconds for segment in self.segments)


@dataclass(frozen=True)
class ReportData:
    """One program: its graphs, and what a call of it costs.

    Attributes:
        program: its name.
        graphs: in the order in which they were compiled.
        breaks: why the framework divided the program into several graphs, with the user's lines.
        outside: how often each operator runs in the framework itself, outside of all graphs.
        first_seconds: the first call, compiling included, in seconds; None where the program was
            compiled before.
        call_seconds: a later call, without measurements inside it, in seconds.
        framework: whose program it is; advice depends on it.
    """

    program: str
    graphs: tuple[GraphReport, ...]
    breaks: tuple[str, ...] = ()
    first_seconds: float | None = None
    call_seconds: float | None = None
    framework: FrameworkName = "torch"
    outside: Mapping[str, int] = field(default_factory=dict)

    @property
    def segments(self) -> tuple[SegmentReport, ...]:
        """Segments of all graphs that ran, each once."""
        return tuple(
            segment
            for graph in self.graphs
            if graph.ran and graph.within is None
            for segment in graph.segments
        )

    @property
    def bytes_shared(self) -> int:
        """Bytes that crossed to or from the device in place, in one call."""
        return sum(segment.bytes_shared for segment in self.segments)

    @property
    def bytes_copied(self) -> int:
        """Bytes that were copied to cross, in one call."""
        return sum(segment.bytes_copied for segment in self.segments)

    @property
    def on_host(self) -> Mapping[str, int]:
        """How often each operator runs on the host."""
        found: Counter[str] = Counter(self.outside)
        for segment in self.segments:
            if segment.placement == "host":
                found.update(segment.operators)
        return found

    @property
    def recompilations(self) -> tuple[GraphReport, ...]:
        """Graphs that were compiled again, with what triggered it."""
        return tuple(graph for graph in self.graphs if graph.trigger is not None)


def total_seconds(times: Iterable[float | None]) -> float | None:
    """The sum of times in seconds; None where one of them was not measured."""
    total = 0.0
    for time in times:
        if time is None:
            return None
        total += time
    return total
