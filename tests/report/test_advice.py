"""Advice: what it says holds, and there is little of it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pjrt_bridge.mixed.graph import Graph, Node
from pjrt_bridge.mixed.partition import partition
from pjrt_bridge.report.advice import file_and_line
from pjrt_bridge.report.data import GraphReport, SegmentReport
from pjrt_bridge.report.fallback_reason import FallbackReason, ReasonKind
from pjrt_bridge.report.report import Report
from tests.report import reports


def report_of(*segments: SegmentReport, name: str = "g") -> Report:
    return Report("model", (GraphReport(name, "inference", "cpu", segments),))


def device(*, bytes_shared: int = 0, bytes_copied: int = 0) -> SegmentReport:
    return SegmentReport(
        "device", {"aten.mm.default": 20}, bytes_shared=bytes_shared, bytes_copied=bytes_copied
    )


def host(kind: ReasonKind, operator: str = "lib.op", source: str | None = "m.py:7: y = op(x)",
         count: int = 1, reason: str = "the reason") -> SegmentReport:  # fmt: skip
    found = FallbackReason(operator, reason, kind, source)
    return SegmentReport("host", {operator: count} if operator else {}, (found,), (0,))


@pytest.mark.parametrize(
    "report",
    [
        reports.nothing(),
        reports.happy(),
        report_of(device(), host("requested"), device()),
        report_of(device(), host("small", ""), device()),
        report_of(device(bytes_copied=1000)),
        replace(
            report_of(device()),
            graphs=(GraphReport("again", "inference", "cpu", (device(),), trigger="x is [3]"),),
        ),
    ],
)
def test_where_nothing_is_to_be_done_nothing_is_said(report: Report) -> None:
    assert report.advice == ()


def test_an_operator_without_a_lowering() -> None:
    (sentence,) = report_of(device(), host("unsupported", count=3), device()).advice
    assert sentence.startswith("No lowering: lib.op (3 times, 2 extra segments, m.py:7). ")
    assert "pjrt_bridge_lowerings" in sentence
    assert "Without" not in sentence


def test_several_operators_without_a_lowering() -> None:
    names = ["lib.a", "lib.b", "lib.a", "lib.c", "lib.d", "lib.d", "lib.d"]
    parts = [part for name in names for part in (device(), host("unsupported", name))]
    (sentence,) = report_of(*parts, device()).advice
    assert sentence.startswith(
        "No lowering: lib.d (3 times, 6 extra segments, m.py:7);"
        " lib.a (twice, 4 extra segments, m.py:7);"
        " lib.b (once, 2 extra segments, m.py:7); +1 more operator. "
    )
    assert sentence.endswith("Without all of them 1 segment would do.")


def test_operators_that_share_a_segment_divide_only_together() -> None:
    both = SegmentReport(
        "host",
        {"lib.a": 1, "lib.b": 1},
        (
            FallbackReason("lib.a", "none", "unsupported"),
            FallbackReason("lib.b", "none", "unsupported"),
        ),
    )
    (sentence,) = report_of(device(), both, device()).advice
    assert "No lowering: lib.a (once); lib.b (once). " in sentence
    assert sentence.endswith("Without all of them 1 segment would do.")


def test_a_use_that_is_refused_is_told_with_its_reason() -> None:
    refused = host("refused", "aten.pad", "conv.py:12: pad(x)", reason="mode 'symmetric'")
    (sentence,) = report_of(device(), refused).advice
    assert "aten.pad: mode 'symmetric' (once, 1 extra segment, conv.py:12)" in sentence


def test_sizes_that_depend_on_data() -> None:
    (sentence,) = report_of(device(), host("data", "aten.nonzero"), device()).advice
    assert sentence.startswith("Depends on data: aten.nonzero (once, 2 extra segments, m.py:7). ")
    assert "Keep sizes fixed" in sentence
    assert "`where`" in sentence


def test_failures_come_first_and_name_the_plugin() -> None:
    failed = SegmentReport(
        "device", {"a": 30}, (FallbackReason("", "INTERNAL: no registers", "failed"),)
    )
    parts = [failed, *[host("unsupported"), device()] * 30]
    first, second = report_of(*parts).advice
    assert first.startswith("cpu failed once with: INTERNAL: no registers. Results are not")
    assert second.startswith("No lowering")


def test_copies_are_told_with_where_most_of_them_are() -> None:
    parts = device(bytes_shared=10, bytes_copied=10**6), device(bytes_copied=3 * 10**6)
    (sentence,) = report_of(*parts, name="main").advice
    assert sentence.startswith("4 MB are copied in each call, 3 MB of it in segment 1 of main. ")
    assert "multiple of 64 bytes" in sentence
    assert "nothing in place" not in sentence
    (sentence,) = report_of(device(bytes_copied=10**6)).advice
    assert "The plugin took nothing in place." in sentence


def test_recompilations_are_told_with_their_cost() -> None:
    segment = replace(device(), compile_seconds=0.25)
    graphs = tuple(
        GraphReport(f"g{size}", "inference", "cpu", (segment,), 0.05, f"x is [{size}]")
        for size in range(2, 7)
    )
    (sentence,) = Report("model", graphs).advice
    assert sentence.startswith(
        "5 graphs were compiled again, which took 1.5 s: x is [2]; x is [3]; x is [4];"
        " +2 more triggers. "
    )


def test_breaks_are_told_once_each() -> None:
    report = replace(report_of(device()), breaks=("a.py:1: print(x)",) * 2 + ("b.py:2: f()",))
    (sentence,) = report.advice
    assert sentence.startswith(
        "The framework divided the program in 2 places: a.py:1: print(x); b.py:2: f(). "
    )


def test_a_break_whose_text_ends_in_a_period_ends_in_one() -> None:
    report = replace(report_of(device()), breaks=("a.py:1: print(x).", "b.py:2: wait..."))
    (sentence,) = report.advice
    assert sentence.startswith(
        "The framework divided the program in 2 places: a.py:1: print(x); b.py:2: wait. Take "
    )


def test_a_graph_within_another_is_not_counted_twice() -> None:
    parts = device(bytes_copied=10**6), host("unsupported"), device()
    outer = GraphReport("outer", "inference", "cpu", parts)
    inner = GraphReport("inner", "inference", "cpu", parts, within="outer")
    assert Report("model", (outer, inner)).advice == Report("model", (outer,)).advice


def test_the_costliest_comes_first() -> None:
    copying = device(bytes_shared=1, bytes_copied=10**9)
    first, second = report_of(copying, host("unsupported"), device()).advice
    assert first.startswith("1 GB are copied")
    assert second.startswith("No lowering")
    first, second = report_of(
        replace(copying, bytes_copied=10**5), host("unsupported"), device()
    ).advice
    assert first.startswith("No lowering")
    assert second.startswith("100 kB are copied")


def test_one_sentence_for_each_thing_that_can_be_improved() -> None:
    kinds: tuple[ReasonKind, ...] = "failed", "unsupported", "refused", "slow", "data", "sizes"
    tiny = SegmentReport("device", {"aten.mm.default": 1}, bytes_copied=10**6)
    segments = [segment for kind in kinds for segment in (tiny, host(kind))]
    graph = GraphReport("g", "inference", "cpu", tuple(segments), 0.05, "x is [2]")
    report = Report("model", (graph, graph), breaks=("a.py:1: print(x)",))
    assert len(report.advice) == SENTENCES


SENTENCES = 10
"""Failures, five kinds of fallback reasons, copies, recompilations, tiny segments, breaks."""


@settings(max_examples=30)
@given(reports.reports())
def test_there_is_little_of_it_and_each_once(report: Report) -> None:
    advice = report.advice
    assert len(advice) == len(set(advice)) <= SENTENCES
    assert all(sentence.isprintable() and len(sentence) < 3000 for sentence in advice)
    assert report.advice == advice


def segments_of(graph: Graph, min_segment: int = 1) -> list[tuple[bool, Sequence[Node]]]:
    return [
        (segment.on_device, [graph.nodes[index] for index in segment.nodes])
        for segment in partition(graph, min_segment=min_segment).segments
    ]


def reported(graph: Graph) -> Report:
    """As a frontend reports it."""
    parts = []
    for on_device, nodes in segments_of(graph):
        reasons = tuple(node.fallback_reason for node in nodes if node.fallback_reason is not None)
        names = Counter(node.name for node in nodes)
        parts.append(SegmentReport("device" if on_device else "host", names, reasons))
    return report_of(*parts)


@st.composite
def graphs(draw: st.DrawFn, chain: bool) -> Graph:
    nodes = []
    for index in range(draw(st.integers(1, 20))):
        name = draw(st.sampled_from(["mm", "mm", "mm", "lib.a", "lib.b"]))
        reason = None if name == "mm" else FallbackReason(name, "no lowering", "unsupported")
        reads = (index,) if chain else tuple(draw(st.sets(st.integers(0, index), max_size=2)))
        nodes.append(Node(name, reads, (index + 1,), reason))
    return Graph((0,), nodes, (len(nodes),))


def without(graph: Graph, *names: str) -> Graph:
    nodes = [
        replace(node, fallback_reason=None) if node.name in names else node for node in graph.nodes
    ]
    return Graph(graph.inputs, nodes, graph.outputs)


def shares_a_segment(graph: Graph, name: str) -> bool:
    """Whether another operator's fallback reason would remain where this one's is."""
    parts = [{node.name for node in nodes} for _, nodes in segments_of(graph)]
    return any(name in names and len(names - {"mm"}) > 1 for names in parts)


@pytest.mark.parametrize("chain", [True, False])
@given(st.data())
def test_an_operator_divides_into_as_many_segments_as_told(
    chain: bool, data: st.DataObject
) -> None:
    graph = data.draw(graphs(chain))
    before = len(segments_of(graph))
    told = " ".join(reported(graph).advice)
    for name in ("lib.a", "lib.b"):
        if any(node.name == name for node in graph.nodes):
            found = re.search(rf"{name} \([\w ]+?(?:, (\d+) extra segments?)?\)", told)
            assert found is not None
            left = len(segments_of(without(graph, name)))
            claimed = before - int(found.group(1) or 0)
            if not shares_a_segment(graph, name):
                assert left == claimed if chain else left <= claimed
    together = re.search(r"Without all of them (\d+) segments? would do", told)
    if together is not None:
        assert len(segments_of(without(graph, "lib.a", "lib.b"))) <= int(together.group(1)) < before


@pytest.mark.parametrize("chain", [True, False])
@given(st.data())
def test_min_segment_does_what_is_told(chain: bool, data: st.DataObject) -> None:
    graph = data.draw(graphs(chain))
    told = " ".join(reported(graph).advice)
    found = re.search(
        r'^.*?(\d+) device segments .*?"min_segment": (\d+)}.*?at most (\d+) segments? instead of'
        r" (\d+)(, none of them on the device)?\.",
        told,
    )
    small = [nodes for on_device, nodes in segments_of(graph) if on_device and len(nodes) <= 4]
    if len(segments_of(graph)) == 1 or len(small) < 3:
        assert found is None
        return
    assert found is not None
    count, least, left, before = map(int, found.groups()[:4])
    assert (count, least) == (len(small), max(map(len, small)) + 1)
    assert before == len(segments_of(graph))
    after = segments_of(graph, least)
    assert len(after) == left if chain else len(after) <= left
    assert not (found.group(5) and any(on_device for on_device, _ in after))


@pytest.mark.parametrize(
    ("source", "where"),
    [
        ("model.py:31: kept = x[x > 0]", "model.py:31"),
        ("C:\\work\\model.py:31: kept", "C:\\work\\model.py:31"),
        ("model.py:31", "model.py:31"),
        ("<stdin>: no line", "<stdin>: no line"),
        ("x" * 100, "x" * 57 + "..."),
    ],
)
def test_the_place_of_a_source_line(source: str, where: str) -> None:
    assert file_and_line(source) == where
