"""Rows of a table: every segment is in one."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings

from pjrt_bridge.report.data import GraphReport
from pjrt_bridge.report.rows import short_rows, single_rows
from tests.report import reports


@settings(max_examples=50)
@given(reports.graph_reports(largest=25))
def test_rows_hold_every_segment_once(graph: GraphReport) -> None:
    for rows in (single_rows(graph), short_rows(graph)):
        numbers = [number for row in rows for number in row.numbers]
        assert sorted(numbers) == list(range(len(graph.segments)))
        assert sum(row.bytes_shared for row in rows) == sum(s.bytes_shared for s in graph.segments)
        assert sum(row.bytes_copied for row in rows) == sum(s.bytes_copied for s in graph.segments)
        counts: Counter[str] = Counter()
        for row in rows:
            counts.update(row.operators)
            for reason in row.reasons:
                counts[reason.operator] += reason.count
            assert {graph.segments[number].placement for number in row.numbers} == {row.placement}
        assert +counts == sum((Counter(s.operators) for s in graph.segments), Counter())
        kept = {(r.operator, r.text, r.kind, s) for row in rows for r in row.reasons
                for s in r.sources or [None]}  # fmt: skip
        for found in graph.fallback_reasons:
            key = (found.operator, found.reason, found.kind)
            assert (*key, found.source or None) in kept or any(other[:3] == key for other in kept)
            assert not found.source or (*key, found.source) in kept
    assert len(short_rows(graph)) <= 10
