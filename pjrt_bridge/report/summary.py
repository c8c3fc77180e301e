"""Sentences and figures about a report or a graph that table and page both show."""

from __future__ import annotations

from pjrt_bridge.report import wording
from pjrt_bridge.report.data import EXPORTED, GraphReport, ReportData
from pjrt_bridge.report.wording import byte_size, duration, plural, printable, share

_SHOWN = 4

NOTHING_COMPILED = (
    "No graph was handed over for compiling. Either the program computes nothing on tensors, or all"
    " of it ran outside of what the framework compiles: nothing was called through the compiled"
    " function, compiling was switched off, or the framework gave up before it had a graph."
)


def device_operators(report: ReportData) -> tuple[int, int]:
    """How many operators run on the device, and how many there are."""
    numbers = [
        (segment.placement == "device", sum(segment.operators.values()))
        for segment in report.segments
    ]
    outside = sum(report.outside.values())
    return sum(n for on_device, n in numbers if on_device), sum(n for _, n in numbers) + outside


def placement_sentence(report: ReportData) -> str:
    """Where the program runs, in one sentence without its name."""
    if not report.graphs:
        return "nothing was compiled"
    places = [segment.placement for segment in report.segments]
    plugins = ", ".join(dict.fromkeys(printable(graph.plugin) for graph in report.graphs))
    if not places:
        return "no compiled graph ran in this call"
    if "host" not in places and not report.outside:
        return f"everything runs on {plugins}"
    on_device, whole = device_operators(report)
    if not whole:
        return "there is nothing to compute: the results are arguments, views of them or numbers"
    if "device" not in places:
        return f"nothing runs on {plugins}, all of it on the host"
    return f"{share(on_device, whole)} of the operators run on {plugins}, the rest on the host"


def key_figures(report: ReportData) -> dict[str, tuple[str, str]]:
    """The most important numbers: for each name a value, and details of it."""
    segments = report.segments
    on_device = sum(segment.placement == "device" for segment in segments)
    rows = {
        "graphs": (str(len(report.graphs)), _graphs_detail(report)),
        "segments": (
            str(len(segments)),
            f"{on_device} on the device, {len(segments) - on_device} on the host",
        ),
    }
    part, whole = device_operators(report)
    if whole:
        rows["on the device"] = (share(part, whole), f"{part} of {plural(whole, 'operator')}")
    if report.first_seconds is not None:
        rows["first call"] = (duration(report.first_seconds), "compiling included")
    if report.call_seconds is not None:
        rows["later calls"] = (duration(report.call_seconds), "each")
    if report.outside:
        operators = wording.listed(wording.counted(report.outside.items()), _SHOWN, "operator")
        count = sum(report.outside.values())
        rows["outside of graphs"] = (str(count), f"run by the framework on the host: {operators}")
    if all(graph.kind == EXPORTED for graph in report.graphs):
        return rows
    rows["in place"] = (byte_size(report.bytes_shared), "crossed without a copy, per call")
    rows["copied"] = (byte_size(report.bytes_copied), "to cross, per call")
    return rows


def _graphs_detail(report: ReportData) -> str:
    kinds = dict.fromkeys(printable(graph.kind) for graph in report.graphs)
    parts = [", ".join(kinds)] if kinds else []
    again = len(report.recompilations)
    idle = sum(not graph.ran for graph in report.graphs)
    if again:
        parts.append(f"{again} compiled again")
    if idle:
        parts.append(f"{idle} not used in this call")
    return "; ".join(parts)


def graph_origin(graph: GraphReport) -> str:
    """What kind of graph it is, and which plugin runs it."""
    part = f", part of {graph.within} for the sizes that came" if graph.within is not None else ""
    return f"{graph.kind} on {graph.plugin}{part}"


def graph_times(graph: GraphReport) -> str:
    """Times of lowering, compiling and running; empty where there are none."""
    parts = [
        f"{what} {duration(seconds)}"
        for what, seconds in (
            ("lowering", graph.lowering_seconds),
            ("compiling", graph.compile_seconds),
            ("running", graph.run_seconds),
        )
        if seconds
    ]
    return ", ".join(parts)
