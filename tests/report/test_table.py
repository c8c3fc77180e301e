"""Reports as text: complete, short, the same everywhere."""

from __future__ import annotations

import io
import re
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from pjrt_bridge.report import summary, wording
from pjrt_bridge.report.data import GraphReport, SegmentReport
from pjrt_bridge.report.fallback_reason import FallbackReason
from pjrt_bridge.report.report import Report
from pjrt_bridge.report.table import text
from tests.report import reports

SAMPLES: list[Callable[[], Report]] = [
    reports.nothing,
    reports.happy,
    reports.joined,
    reports.alternating,
    reports.several,
    reports.hostile,
]


def test_all_on_the_device_is_short() -> None:
    assert str(reports.happy()).splitlines() == [
        "TransformerEncoder: everything runs on cpu",
        "  graphs         1        inference",
        "  segments       1        1 on the device, 0 on the host",
        "  on the device  100 %    88 of 88 operators",
        "  first call     1.24 s   compiling included",
        "  later calls    3.1 ms   each",
        "  in place       48.2 MB  crossed without a copy, per call",
        "  copied         0 B      to cross, per call",
        "",
        "graph 0 (inference on cpu): lowering 21 ms, compiling 312 ms, running 2.91 ms",
        "  #  where   operators" + " " * 52 + "in place  compile      run",
        "  0  device  aten.view x40, aten.mm.default x24, aten.add.Tensor x12,"
        "      48.2 MB   312 ms  2.91 ms",
        "             aten.gelu.default x12",
    ]


def test_no_graphs_are_explained() -> None:
    report = Report("model", (), breaks=("a.py:1: import of this is not traced",))
    shown = " ".join(str(report).split())
    assert shown.startswith(f"model: nothing was compiled {summary.NOTHING_COMPILED}")
    assert "a.py:1: import of this is not traced" in shown


def test_what_is_on_the_host_says_why_and_where() -> None:
    shown = text(reports.joined(), 200)
    assert "Detector: 97 % of the operators run on cpu, the rest on the host" in shown
    assert "aten.nonzero.default: the size of its result depends on data" in shown
    assert "model.py:31: kept = (scores > 0.5).nonzero()" in shown
    assert "mylib.roi_align.default x2: no lowering to StableHLO exists" in shown
    assert re.search(r"\n  3  host    aten.view.default +- +1.25 MB +- +1.7 ms\n", shown)


def test_fifty_segments_are_shown_with_those_alike() -> None:
    lines = str(reports.alternating()).splitlines()
    assert len(lines) < 40
    assert sum("+22 more" in line for line in lines) == 2
    joined = " ".join(text(reports.alternating(), 300).split())
    assert "mylib.scan.default x25: no lowering to StableHLO exists" in joined
    assert "rnn.py:21: state = mylib.scan(state, x[1])" in joined
    assert "+23 more lines" in joined


def test_recompilations_and_recoveries_are_shown() -> None:
    shown = text(reports.several(), 300)
    assert "recovered from: INTERNAL: no register left for fusion.7" in shown
    assert "forward 2: x is [9, 3], was [4, 3]" in shown
    assert "+2 more graphs that did not run in this call, compiled in 400 ms: 2 segments" in shown


def test_long_lists_end_with_how_many_more_there_are() -> None:
    breaks = tuple(f"m.py:{line}: print()" for line in range(20))
    shown = str(Report("model", reports.happy().graphs, breaks)).partition("What to do")[0]
    assert shown.count("print()") == 8
    assert shown.rstrip().endswith("+12 more")


def squeezed(shown: str) -> str:
    return " ".join(shown.split())


@settings(max_examples=30)
@given(reports.reports(), st.integers(60, 200))
def test_every_string_is_plain(report: Report, width: int) -> None:
    shown = text(report, width)
    assert "\x1b" not in shown
    assert all(char == "\n" or char.isprintable() for char in shown)
    assert all(line == line.rstrip() for line in shown.splitlines())
    assert all(cell_len(line) <= width for line in shown.splitlines())
    shown.encode()


@settings(max_examples=30)
@given(reports.reports())
def test_what_is_not_shown_is_counted(report: Report) -> None:
    shown = squeezed(text(report, 2000))
    hidden = re.findall(r"\+(\d+) more reasons?, of (\d+) operators? in (\d+) lines?", shown)
    for found, alone, column in (
        (reasons, None, 0),
        (operators, r"\+(\d+) more operator", 1),
        (sources, r"\+(\d+) more line", 2),
    ):
        counted = sum(int(numbers[column]) for numbers in hidden)
        counted += sum(map(int, re.findall(alone, shown))) if alone else 0
        tables = [graph for graph in report.graphs if graph.ran]
        missing = [name for graph in tables for name in found(graph) if name not in shown]
        assert len(missing) <= counted
    idle = sum(not graph.ran for graph in report.graphs)
    assert not idle or f"+{wording.plural(idle, 'more graph')} that did not run" in shown


def test_what_is_too_much_for_a_row() -> None:
    reasons = tuple(
        FallbackReason(f"op{index % 7}", f"because {index}", "refused", f"m.py:{index % 5}")
        for index in range(9)
    )
    host = SegmentReport("host", {f"op{index}": 1 for index in range(7)}, reasons)
    device = SegmentReport("device", {f"on{index}": 1 for index in range(9)})
    report = Report("model", (GraphReport("g", "inference", "cpu", (device, host)),))
    shown = str(report)
    assert "on0, on1, on2, on3, +5 more operators" in shown
    assert "op2: because 2" in shown
    assert "op3" not in shown.partition("What to do")[0]
    assert "+6 more reasons, of 6 operators in 5 lines" in shown


def test_of_many_graphs_those_with_fallback_reasons_are_shown() -> None:
    (graph,) = reports.joined().graphs
    (fine,) = reports.happy().graphs
    report = Report("model", (*[fine] * 9, graph, *[fine] * 2))
    shown = squeezed(str(report))
    assert "forward (inference on cpu)" in shown
    assert shown.count("graph 0 (inference on cpu)") == 7
    assert "+4 more graphs, compiled in 1.25 s: 4 segments, 4 of them on the device" in shown
    assert len(str(report).splitlines()) < 80


def operators(graph: GraphReport) -> set[str]:
    return {wording.printable(name) for part in graph.segments for name in part.operators}


def reasons(graph: GraphReport) -> set[str]:
    return {wording.printable(found.reason) for found in graph.fallback_reasons}


def sources(graph: GraphReport) -> set[str]:
    return {wording.printable(found.source) for found in graph.fallback_reasons if found.source}


def test_a_terminal_gets_colours() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, color_system="standard", width=100)
    with console.capture() as captured:
        console.print(reports.joined())
    coloured = captured.get()
    assert "\x1b[32mdevice" in coloured
    assert "\x1b[33mhost" in coloured
    plain = re.sub(r"\x1b\[[\d;]*m", "", coloured)
    assert [line.rstrip() for line in plain.splitlines()] == str(reports.joined()).splitlines()


@pytest.mark.parametrize("sample", SAMPLES)
def test_a_string_does_not_depend_on_the_environment(
    sample: Callable[[], Report], monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = str(sample())
    for name, value in (("FORCE_COLOR", "1"), ("COLUMNS", "30"), ("TERM", "dumb")):
        monkeypatch.setenv(name, value)
    assert str(sample()) == plain
