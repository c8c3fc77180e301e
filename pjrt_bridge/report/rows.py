"""The rows of a graph's table: a segment each, or alike segments together where there are many."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pjrt_bridge.report.fallback_reason import Kind

if TYPE_CHECKING:
    from pjrt_bridge.report.report import GraphReport, SegmentReport

SEVERAL = 10
"""More segments than this are shown together with those that are alike."""
GROUPS = 6
"""So many groups of alike segments have a row of their own; the rest are one row a placement."""


@dataclass(frozen=True)
class Reason:
    """Why something runs on the host, once however often it holds.

    Attributes:
        operator: what it concerns; empty where it concerns whole segments.
        text: in the user's terms.
        kind: what sort of reason.
        count: how often the operator occurs; 0 where an earlier reason has counted it.
        sources: the user's lines, each once.
    """

    operator: str
    text: str
    kind: Kind
    count: int
    sources: tuple[str, ...]


@dataclass(frozen=True)
class Row:
    """One segment, or several that are alike.

    Attributes:
        numbers: of the segments, in running order.
        placement: `"device"` or `"host"`.
        operators: how often each operator occurs, those that a reason names left out.
        reasons: the most frequent first.
        bytes_shared: of all these segments.
        bytes_copied: of all these segments.
        compile_seconds: of all these segments.
        cached: how many of them were loaded from the compile cache.
        run_seconds: of all these segments; None where one was not measured.
    """

    numbers: tuple[int, ...]
    placement: str
    operators: Mapping[str, int]
    reasons: tuple[Reason, ...]
    bytes_shared: int
    bytes_copied: int
    compile_seconds: float
    cached: int
    run_seconds: float | None


def single_rows(graph: GraphReport) -> list[Row]:
    """A row for each segment."""
    return [_row(graph, [number]) for number in range(len(graph.segments))]


def short_rows(graph: GraphReport) -> list[Row]:
    """A row for each segment, or few rows in which alike segments are together.

    Segments are alike that run in the same place for the same reasons.
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
    times = [segment.run_seconds for segment in segments]
    return Row(
        numbers=tuple(numbers),
        placement=segments[0].placement,
        operators={name: count for name, count in operators.items() if name not in named},
        reasons=reasons,
        bytes_shared=sum(segment.bytes_shared for segment in segments),
        bytes_copied=sum(segment.bytes_copied for segment in segments),
        compile_seconds=sum(segment.compile_seconds for segment in segments),
        cached=sum(segment.cached for segment in segments),
        run_seconds=None if None in times else sum(time for time in times if time is not None),
    )


def _reasons(segments: Iterable[SegmentReport], operators: Mapping[str, int]) -> tuple[Reason, ...]:
    sources: dict[tuple[str, str, Kind], dict[str, None]] = {}
    seen: Counter[tuple[str, str, Kind]] = Counter()
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
        reasons.append(Reason(operator, text, kind, count, tuple(places)))
    return tuple(reasons)
