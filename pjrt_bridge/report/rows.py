"""The rows of a graph's table: one for each segment, or for similar segments together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from pjrt_bridge.report.data import Exchange, GraphReport, SegmentReport, total_seconds
from pjrt_bridge.report.fallback_reason import ReasonKind
from pjrt_bridge.report.wording import byte_size, duration, printable

SEVERAL = 10
"""With more segments than this, similar ones share a row."""
GROUPS = 6
"""Number of groups of similar segments with a row each; the rest get one row per placement."""


@dataclass(frozen=True)
class MergedReason:
    """Equal fallback reasons of a row's segments, differing in their source lines only.

    Attributes:
        operator: what it concerns; empty where it concerns whole segments.
        text: in the user's terms.
        kind: of the fallback reasons.
        count: how often the operator occurs; 0 where an earlier reason has counted it.
        sources: the user's lines, each once.
    """

    operator: str
    text: str
    kind: ReasonKind
    count: int
    sources: tuple[str, ...]


@dataclass(frozen=True)
class Row:
    """One segment, or several similar ones.

    Attributes:
        numbers: of the segments, in running order.
        placement: where they run.
        operators: how often each operator occurs, except those that a reason names.
        reasons: the most frequent first.
        bytes_shared: of all segments of the row.
        bytes_copied: of all segments of the row.
        compile_seconds: of all segments of the row.
        cached: how many of them were loaded from the compile cache.
        renewed: how many of them were compiled again in the background.
        run_seconds: of all segments of the row; None where one was not measured.
        exchanges: of all segments of the row, the most bytes first.
    """

    numbers: tuple[int, ...]
    placement: Literal["device", "host"]
    operators: Mapping[str, int]
    reasons: tuple[MergedReason, ...]
    bytes_shared: int
    bytes_copied: int
    compile_seconds: float
    cached: int
    renewed: int
    run_seconds: float | None
    exchanges: tuple[Exchange, ...] = ()

    @property
    def compilation(self) -> str:
        """Time of compiling, how many came from the cache or were renewed; may be empty."""
        if not self.compile_seconds:
            return ""
        counts = {"from the cache": self.cached, "renewed with faster kernels": self.renewed}
        notes = [
            what if count == len(self.numbers) else f"{count} {what}"
            for what, count in counts.items()
            if count
        ]
        return ", ".join([duration(self.compile_seconds), *notes])

    @property
    def exchanged(self) -> str:
        """What the devices of a mesh exchange, and the bytes that each gets; may be empty."""
        return ", ".join(
            f"{one.count} {printable(one.operation)} ({byte_size(one.nbytes)})"
            for one in self.exchanges
        )


def single_rows(graph: GraphReport) -> list[Row]:
    """A row for each segment."""
    return [_row(graph, [number]) for number in range(len(graph.segments))]


def short_rows(graph: GraphReport) -> list[Row]:
    """A row for each segment, or few rows, each of several similar segments.

    Similar segments run in the same place for the same reasons.
    """
    if len(graph.segments) <= SEVERAL:
        return single_rows(graph)
    groups: dict[object, list[int]] = {}
    for number, segment in enumerate(graph.segments):
        reasons = frozenset((found.operator, found.reason) for found in segment.fallback_reasons)
        groups.setdefault((segment.placement, reasons), []).append(number)
    ordered = sorted(groups.values(), key=len, reverse=True)
    rest: dict[str, list[int]] = {}
    for numbers in ordered[GROUPS:]:
        rest.setdefault(graph.segments[numbers[0]].placement, []).extend(numbers)
    chosen = [*ordered[:GROUPS], *(sorted(numbers) for numbers in rest.values())]
    return [_row(graph, numbers) for numbers in sorted(chosen)]


def _row(graph: GraphReport, numbers: Sequence[int]) -> Row:
    segments = [graph.segments[number] for number in numbers]
    operators: Counter[str] = Counter()
    for segment in segments:
        operators.update(segment.operators)
    reasons = _reasons(segments, operators)
    named = {reason.operator for reason in reasons}
    return Row(
        numbers=tuple(numbers),
        placement=segments[0].placement,
        operators={name: count for name, count in operators.items() if name not in named},
        reasons=reasons,
        bytes_shared=sum(segment.bytes_shared for segment in segments),
        bytes_copied=sum(segment.bytes_copied for segment in segments),
        compile_seconds=sum(segment.compile_seconds for segment in segments),
        cached=sum(segment.cached for segment in segments),
        renewed=sum(bool(segment.renewed) for segment in segments),
        run_seconds=total_seconds(segment.run_seconds for segment in segments),
        exchanges=_exchanges(segments),
    )


def _exchanges(segments: Iterable[SegmentReport]) -> tuple[Exchange, ...]:
    counts: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    for segment in segments:
        for found in segment.exchanges:
            counts[found.operation] += found.count
            sizes[found.operation] += found.nbytes
    return tuple(Exchange(name, counts[name], size) for name, size in sizes.most_common())


def _reasons(
    segments: Iterable[SegmentReport], operators: Mapping[str, int]
) -> tuple[MergedReason, ...]:
    sources: dict[tuple[str, str, ReasonKind], dict[str, None]] = {}
    seen: Counter[tuple[str, str, ReasonKind]] = Counter()
    for segment in segments:
        for found in segment.fallback_reasons:
            key = (found.operator, found.reason, found.kind)
            seen[key] += 1
            places = sources.setdefault(key, {})
            if found.source:
                places[found.source] = None
    counted: set[str] = set()
    reasons = []
    for (operator, text, kind), _ in seen.most_common():
        count = 0 if operator in counted else operators.get(operator, 0)
        counted.add(operator)
        places = sources[operator, text, kind]
        reasons.append(MergedReason(operator, text, kind, count, tuple(places)))
    return tuple(reasons)
