"""Reports to render: some as programs give them, and a strategy for any."""

from __future__ import annotations

from typing import get_args

from hypothesis import strategies as st

from pjrt_bridge.report.data import Exchange, GraphReport, SegmentReport
from pjrt_bridge.report.fallback_reason import FallbackReason, ReasonKind
from pjrt_bridge.report.report import Report

HOSTILE = "<script>alert(1)</script>&\"'`[red]\x1b[31m\u202e\ud800"


def nothing() -> Report:
    return Report("model", ())


def happy() -> Report:
    """All on the device."""
    segment = SegmentReport(
        "device",
        {"aten.mm.default": 24, "aten.add.Tensor": 12, "aten.gelu.default": 12, "aten.view": 40},
        takes_arguments=True,
        gives_results=True,
        bytes_shared=48_234_496,
        compile_seconds=0.312,
        run_seconds=0.00291,
    )
    graph = GraphReport("graph 0", "inference", "cpu", (segment,), lowering_seconds=0.021)
    return Report("TransformerEncoder", (graph,), first_seconds=1.24, call_seconds=0.0031)


def joined() -> Report:
    """Five segments; the last device segment reads from two."""
    nonzero = FallbackReason(
        "aten.nonzero.default",
        "the size of its result depends on data",
        "data",
        "model.py:31: kept = (scores > 0.5).nonzero()",
    )
    custom = FallbackReason(
        "mylib.roi_align.default",
        "no lowering to StableHLO exists for this operator",
        "unsupported",
        "model.py:38: boxes = mylib.roi_align(features, kept)",
    )
    segments = (
        SegmentReport(
            "device",
            {"aten.convolution.default": 53, "aten.relu.default": 49, "aten.add.Tensor": 16},
            takes_arguments=True,
            bytes_shared=102_000_000,
            compile_seconds=0.81,
            run_seconds=0.0123,
        ),
        SegmentReport("host", {nonzero.operator: 1}, (nonzero,), (0,), bytes_shared=4096,
                      run_seconds=0.00004),
        SegmentReport("device", {"aten.index.Tensor": 1, "aten.mul.Tensor": 3}, (), (0, 1),
                      bytes_shared=65_536, compile_seconds=0.04, run_seconds=0.0002),
        SegmentReport("host", {custom.operator: 2, "aten.view.default": 1}, (custom,), (0, 2),
                      takes_arguments=True, bytes_copied=1_254_000, run_seconds=0.0017),
        SegmentReport("device", {"aten.mm.default": 2, "aten.softmax.int": 1}, (), (2, 3),
                      gives_results=True, bytes_shared=400_000, bytes_copied=524_288,
                      compile_seconds=0.05, run_seconds=0.0004),
    )  # fmt: skip
    graph = GraphReport("forward", "inference", "cpu", segments, lowering_seconds=0.12)
    return Report(
        "Detector",
        (graph,),
        breaks=("model.py:44: print(boxes.shape) (a call of print cannot be traced)",),
        first_seconds=2.4,
        call_seconds=0.0151,
    )


def alternating(number: int = 50) -> Report:
    """Device and host in turns, always for the same reason."""
    segments = []
    for index in range(number):
        on_device = index % 2 == 0
        reason = FallbackReason(
            "mylib.scan.default",
            "no lowering to StableHLO exists for this operator",
            "unsupported",
            f"rnn.py:{20 + index}: state = mylib.scan(state, x[{index}])",
        )
        segments.append(
            SegmentReport(
                "device" if on_device else "host",
                {"aten.mm.default": 1, "aten.tanh.default": 1}
                if on_device
                else {reason.operator: 1},
                () if on_device else (reason,),
                tuple({max(index - 1, 0), max(index - 3, 0)}) if index else (),
                takes_arguments=on_device,
                gives_results=index == number - 1,
                bytes_shared=16_384,
                bytes_copied=0 if index % 5 else 4_096,
                compile_seconds=0.03 if on_device else 0.0,
                run_seconds=0.00011 if on_device else 0.00003,
            )
        )
    graph = GraphReport("loop", "inference", "cpu", tuple(segments), lowering_seconds=0.2)
    return Report("Recurrent", (graph,), first_seconds=3.1, call_seconds=0.0044)


def several() -> Report:
    """Training with recompilations and requests: five graphs, of which three ran."""
    asked = FallbackReason("aten.dropout.default", "the user asked for it", "requested", None)
    failed = FallbackReason("", "INTERNAL: no register left for fusion.7", "failed", None)
    forward = SegmentReport(
        "device", {"aten.mm.default": 12}, (failed,), takes_arguments=True, gives_results=True,
        bytes_shared=2_000_000, compile_seconds=0.4, run_seconds=0.002,
    )  # fmt: skip
    drop = SegmentReport("host", {"aten.dropout.default": 2}, (asked,), (0,), run_seconds=0.0001)
    after = SegmentReport(
        "device", {"aten.mm.default": 1, "aten.sum.default": 1}, (), (0, 1), gives_results=True,
        bytes_shared=900, compile_seconds=0.02, run_seconds=0.0001,
    )  # fmt: skip
    return Report(
        "train_step",
        (
            GraphReport("forward 0", "forward", "cpu", (forward, drop, after), 0.03),
            GraphReport("backward 0", "backward", "cpu", (forward,), 0.05),
            GraphReport("forward 1", "forward", "cpu", (forward,), 0.03, "x is [8, 3], was [4, 3]"),
            GraphReport("forward 2", "forward", "cpu", (forward,), 0.03, "x is [9, 3], was [4, 3]",
                        ran=False),
            GraphReport("forward 3", "forward", "cpu", (drop,), 0.03, "x is [7, 3], was [4, 3]",
                        ran=False),
        ),
        call_seconds=0.012,
    )  # fmt: skip


def hostile() -> Report:
    """Names that would be markup, code or terminal commands if they were not escaped."""
    reason = FallbackReason(HOSTILE, HOSTILE, "refused", HOSTILE)
    segments = (
        SegmentReport("device", {HOSTILE: 3, "\n\t" + HOSTILE: 1}, takes_arguments=True),
        SegmentReport("host", {HOSTILE: 1}, (reason,), (0,), gives_results=True),
    )
    graph = GraphReport(HOSTILE, HOSTILE, HOSTILE, segments, 0.1, HOSTILE)
    return Report(HOSTILE, (graph, graph), (HOSTILE,), 1.0, 1.0)


NAMES = st.text(max_size=12) | st.sampled_from(
    ["aten.mm.default", "aten.add.Tensor", "tf.Where", "&lt;b&amp;", HOSTILE, "", "a b\nc"]
)
SECONDS = st.floats(0, 1e4)
BYTES = st.integers(0, 10**13)
EXCHANGES = st.builds(Exchange, NAMES, st.integers(1, 99), BYTES)


@st.composite
def segments(draw: st.DrawFn, index: int) -> SegmentReport:
    operators = draw(st.dictionaries(NAMES, st.integers(1, 1000), max_size=6))
    reasons = st.builds(
        FallbackReason,
        st.sampled_from([*operators, ""]),
        NAMES,
        st.sampled_from(get_args(ReasonKind)),
        st.none() | NAMES,
    )
    reads = draw(st.sets(st.integers(0, index - 1), max_size=3)) if index else set()
    return SegmentReport(
        placement=draw(st.sampled_from(["device", "host"])),
        operators=operators,
        fallback_reasons=tuple(draw(st.lists(reasons, max_size=5))),
        reads=tuple(reads),
        takes_arguments=draw(st.booleans()),
        gives_results=draw(st.booleans()),
        bytes_shared=draw(BYTES),
        bytes_copied=draw(BYTES),
        exchanges=tuple(draw(st.lists(EXCHANGES, max_size=2))),
        compile_seconds=draw(SECONDS),
        cached=draw(st.booleans()),
        run_seconds=draw(st.none() | SECONDS),
    )


@st.composite
def graph_reports(draw: st.DrawFn, largest: int = 14) -> GraphReport:
    number = draw(st.integers(0, largest))
    return GraphReport(
        name=draw(NAMES),
        kind=draw(st.sampled_from(["inference", "forward", "backward"])),
        plugin=draw(NAMES),
        segments=tuple(draw(segments(index)) for index in range(number)),
        lowering_seconds=draw(SECONDS),
        trigger=draw(st.none() | NAMES),
        ran=draw(st.sampled_from([True, True, True, False])),
        within=draw(st.sampled_from([None, None, "graph 0"])),
    )


@st.composite
def reports(draw: st.DrawFn) -> Report:
    return Report(
        program=draw(NAMES),
        graphs=tuple(draw(st.lists(graph_reports(), max_size=4))),
        breaks=tuple(draw(st.lists(NAMES, max_size=9))),
        first_seconds=draw(st.none() | SECONDS),
        call_seconds=draw(st.none() | SECONDS),
        outside=draw(st.dictionaries(NAMES, st.integers(1, 9), max_size=3)),
    )
