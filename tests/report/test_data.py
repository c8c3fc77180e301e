"""Sums over segments and graphs."""

from __future__ import annotations

from pjrt_bridge.report.data import GraphReport, ReportData, SegmentReport, total_seconds

DEVICE = SegmentReport("device", {"mm": 2}, bytes_shared=4, bytes_copied=1, run_seconds=0.5)
HOST = SegmentReport("host", {"sort": 1, "mm": 1}, bytes_shared=2)


def test_a_sum_of_times_needs_all_of_them() -> None:
    assert total_seconds([0.5, 0.25]) == 0.75
    assert total_seconds([0.5, None]) is None
    assert total_seconds([]) == 0


def test_a_graph_sums_its_segments() -> None:
    graph = GraphReport("g", "inference", "cpu", (DEVICE, HOST))
    assert (graph.on_device, graph.operations, graph.run_seconds) == (1, 4, None)
    assert GraphReport("g", "inference", "cpu", (DEVICE,)).run_seconds == 0.5


def test_segments_count_once_and_only_where_they_ran() -> None:
    graph = GraphReport("g", "inference", "cpu", (DEVICE, HOST))
    within = GraphReport("h", "inference", "cpu", (DEVICE,), within="g")
    idle = GraphReport("i", "inference", "cpu", (HOST,), trigger="x is [3]", ran=False)
    data = ReportData("model", (graph, within, idle))
    assert data.segments == (DEVICE, HOST)
    assert (data.bytes_shared, data.bytes_copied) == (6, 1)
    assert data.on_host == {"sort": 1, "mm": 1}
    assert data.recompilations == (idle,)
