"""Words that the text, the page and the advice of a report share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pjrt_bridge.report.report import GraphReport, Report
    from pjrt_bridge.report.rows import Row

NOTHING_COMPILED = (
    "No graph was handed over for compiling. Either the program computes nothing on tensors, or all"
    " of it ran outside of what the framework compiles: nothing was called through the compiled"
    " function, compiling was switched off, or the framework gave up before it had a graph."
)

EXPORTED = "exported"
"""Kind of a graph that was saved: what a call of it costs is not known."""


def printable(text: str) -> str:
    """One line that is safe to print: runs of white space as one blank, control codes escaped."""
    return "".join(
        # Also halves of surrogate pairs, which no encoding takes, and marks that reverse the line.
        char if char.isprintable() else char.encode("unicode_escape").decode()
        for char in " ".join(text.split())
    )


def clip(text: str, length: int) -> str:
    """A printable line of at most so many characters, with dots where something is missing."""
    line = printable(text)
    return line if len(line) <= length else line[: max(0, length - 3)].rstrip(" .") + "..."


def plural(number: int, singular: str) -> str:
    """A number with its noun."""
    return f"{number} {singular}" if number == 1 else f"{number} {singular}s"


def times(number: int) -> str:
    """How often."""
    return {1: "once", 2: "twice"}.get(number, f"{number} times")


def listed(items: Sequence[str], most: int, noun: str = "", between: str = ", ") -> str:
    """The first few, and how many more there are."""
    rest = len(items) - most
    more = [f"+{plural(rest, f'more {noun}') if noun else f'{rest} more'}"] if rest > 0 else []
    return between.join([*items[:most], *more])


def byte_size(count: int) -> str:
    """A number of bytes to three digits, in decimal units."""
    return _scaled(count, ("B", "kB", "MB", "GB", "TB", "PB"))


def duration(seconds: float) -> str:
    """A time to three digits, in seconds or a fraction of them."""
    if seconds == 0 or seconds >= 0.9995:
        return _scaled(seconds, ("s",))
    return _scaled(seconds * 1e6, ("us", "ms"))


def compilation(row: Row) -> str:
    """What compiling a row's programs took, and how many were compiled before; may be empty."""
    if not row.compile_seconds:
        return ""
    time = duration(row.compile_seconds)
    if not row.cached:
        return time
    some = "" if row.cached == len(row.numbers) else f"{row.cached} "
    return f"{time}, {some}from the cache"


def _scaled(value: float, units: Sequence[str]) -> str:
    # What would be rounded to four digits belongs to the next unit.
    unit = 0
    while value >= 999.5 and unit + 1 < len(units):
        value /= 1000
        unit += 1
    number = f"{value:.0f}" if value >= 999.5 else f"{value:.3g}"
    return f"{number} {units[unit]}"


def share(part: int, whole: int) -> str:
    """A percentage that says 100 only of all and 0 only of nothing."""
    if part in (0, whole):
        return "100 %" if part else "0 %"
    percent = min(max(100 * part / whole, 0.1), 99.9)
    return f"{percent:.1f} %" if percent < 1 or percent > 99 else f"{percent:.0f} %"


def counted(operators: Iterable[tuple[str, int]]) -> list[str]:
    """Operators with how often they occur, the most frequent first."""
    ordered = sorted(operators, key=lambda item: (-item[1], item[0]))
    return [
        f"{printable(name)} x{number}" if number > 1 else printable(name)
        for name, number in ordered
    ]


def device_operators(report: Report) -> tuple[int, int]:
    """How many operators run on the device, and how many there are."""
    numbers = [
        (segment.placement == "device", sum(segment.operators.values()))
        for segment in report.segments
    ]
    return sum(n for on_device, n in numbers if on_device), sum(n for _, n in numbers)


def verdict(report: Report) -> str:
    """What became of the program, in one sentence without its name."""
    if not report.graphs:
        return "nothing was compiled"
    places = [segment.placement for segment in report.segments]
    plugins = ", ".join(dict.fromkeys(printable(graph.plugin) for graph in report.graphs))
    if not places:
        return "no compiled graph ran in this call"
    if "host" not in places:
        return f"everything runs on {plugins}"
    on_device, whole = device_operators(report)
    if not whole:
        return "there is nothing to compute: the results are arguments, views of them or numbers"
    if "device" not in places:
        return f"nothing runs on {plugins}, all of it on the host"
    return f"{share(on_device, whole)} of the operators run on {plugins}, the rest on the host"


def headline(report: Report) -> dict[str, tuple[str, str]]:
    """The numbers that matter most: by name a value, and what it is made of."""
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
    if all(graph.kind == EXPORTED for graph in report.graphs):
        return rows
    rows["in place"] = (byte_size(report.bytes_shared), "crossed without a copy, per call")
    rows["copied"] = (byte_size(report.bytes_copied), "to cross, per call")
    return rows


def _graphs_detail(report: Report) -> str:
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
    """What a graph is and where it runs."""
    part = f", part of {graph.within} for the sizes that came" if graph.within is not None else ""
    return f"{graph.kind} on {graph.plugin}{part}"


def graph_facts(graph: GraphReport) -> str:
    """Where a graph's time goes."""
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
