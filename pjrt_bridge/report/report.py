"""What became of a program and why: one report for every framework.

A frontend fills these records from its graphs; text, JSON and HTML are made from them alone.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pjrt_bridge.report.advice import Framework, advise
from pjrt_bridge.report.fallback_reason import FallbackReason

if TYPE_CHECKING:
    from rich.console import RenderableType


@dataclass(frozen=True)
class SegmentReport:
    """Nodes of a graph that run together.

    Attributes:
        placement: where.
        operators: how often each operator occurs.
        fallback_reasons: why it is on the host; for a device segment what failed and was recovered.
        reads: indices of segments of this graph whose results it takes.
        takes_arguments: whether it reads arguments of the graph.
        gives_results: whether the caller gets results of it.
        bytes_shared: bytes that crossed to or from the device in place, in the last call.
        bytes_copied: bytes that had to be copied to cross, in the last call.
        compile_seconds: the plugin's compilation, in seconds.
        cached: its program was compiled before, and was loaded from the compile cache.
        run_seconds: one run, waited for, in seconds; None where it was not measured.
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
    run_seconds: float | None = None


@dataclass(frozen=True)
class GraphReport:
    """One graph that the framework handed over.

    Attributes:
        name: tells it from the other graphs of a report.
        kind: `"inference"`, `"forward"` or `"backward"`; `"exported"` for a program that was saved.
        plugin: name of the plugin.
        segments: in running order.
        lowering_seconds: time from the framework's graph to StableHLO.
        trigger: what made the bridge compile it although it, or a graph of the same code, had been
            compiled before; None for the first time.
        ran: whether the call that is reported used it; otherwise it is listed for its compilation.
        within: name of the graph of which it is one segment, compiled for the sizes that came; what
            it ran is counted there.
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
        """How many operators it has; those that several segments compute anew count in each."""
        return sum(sum(segment.operators.values()) for segment in self.segments)

    @property
    def fallback_reasons(self) -> tuple[FallbackReason, ...]:
        """Why parts of it run on the host."""
        return tuple(found for segment in self.segments for found in segment.fallback_reasons)

    @property
    def compile_seconds(self) -> float:
        """The plugin's compilation of all segments."""
        return sum(segment.compile_seconds for segment in self.segments)

    @property
    def run_seconds(self) -> float | None:
        """The runs of all segments; None where one was not measured."""
        times = [segment.run_seconds for segment in self.segments]
        return None if None in times else sum(time for time in times if time is not None)


@dataclass(frozen=True)
class Report:
    """What became of a program.

    Attributes:
        program: its name.
        graphs: in the order in which they were compiled.
        breaks: why the framework divided the program into several graphs, with the user's lines.
        first_seconds: the first call, compiling included; None where it was compiled before.
        call_seconds: a later call, which runs undisturbed.
        framework: whose program it is; advice speaks of what its users can do.
    """

    program: str
    graphs: tuple[GraphReport, ...]
    breaks: tuple[str, ...] = ()
    first_seconds: float | None = None
    call_seconds: float | None = None
    framework: Framework = "torch"

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
        found: Counter[str] = Counter()
        for segment in self.segments:
            if segment.placement == "host":
                found.update(segment.operators)
        return found

    @property
    def recompilations(self) -> tuple[GraphReport, ...]:
        """Graphs that were compiled again, with what triggered it."""
        return tuple(graph for graph in self.graphs if graph.trigger is not None)

    @property
    def advice(self) -> tuple[str, ...]:
        """What to do about what was found; empty when all of it runs on the device."""
        return tuple(advise(self))

    def to_json(self) -> str:
        """All of it as a JSON object."""
        content: dict[str, Any] = _plain(self)
        content["advice"] = list(self.advice)
        content["bytes_shared"] = self.bytes_shared
        content["bytes_copied"] = self.bytes_copied
        return json.dumps(content, indent=2)

    def to_html(self, path: str | Path) -> Path:
        """Write one self-contained page, with each graph's segments as a picture; its path."""
        from pjrt_bridge.report.page import page

        written = Path(path)
        written.write_text(page(self), encoding="utf-8")
        return written

    def __str__(self) -> str:
        # Here and above: what only shows a report is loaded when one is shown.
        from pjrt_bridge.report.table import text

        return text(self)

    def __rich__(self) -> RenderableType:
        """What a console of rich prints: the same as the string, in colours and as wide as it."""
        from pjrt_bridge.report.table import renderable

        return renderable(self)


def _plain(value: Any) -> Any:
    """Records as dicts and sequences as lists, for JSON."""
    if is_dataclass(value):
        return {item.name: _plain(getattr(value, item.name)) for item in fields(value)}
    # dataclasses.asdict would break on a Counter and on a read-only view of a dict.
    if isinstance(value, Mapping):
        return {name: _plain(item) for name, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, tuple | list) else value
