"""A report as text: with colours in a terminal, plain and of fixed width as a string."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from pjrt_bridge.report import summary, wording
from pjrt_bridge.report.advice import LONGEST_BREAK, advise
from pjrt_bridge.report.data import GraphReport, ReportData
from pjrt_bridge.report.rows import MergedReason, Row, short_rows

WIDTH = 100
"""Characters in a line of the string."""

_OPERATORS = 4
_REASONS = 3
_SOURCES = 2
_NUMBERS = 3
_NUMBER_WIDTH = 9
_GRAPHS = 8
_LINES = 8
_LONGEST = 240

_COLORS = {"device": "green", "host": "yellow"}


def text(report: ReportData, width: int = WIDTH) -> str:
    """The report as plain text: no colours, no blanks at the ends of lines."""
    # Nothing is left for Console to detect: the string is the same in a notebook and in a log.
    console = Console(
        file=io.StringIO(),
        width=width,
        height=25,
        color_system=None,
        force_jupyter=False,
        legacy_windows=False,
    )
    with console.capture() as captured:
        console.print(renderable(report))
    return "\n".join(line.rstrip() for line in captured.get().splitlines())


def renderable(report: ReportData) -> RenderableType:
    """The report for a console of rich, as wide as that is."""
    title = Text.assemble(
        (wording.clip(report.program, _LONGEST), "bold"), ": ", summary.placement_sentence(report)
    )
    if not report.graphs:
        return Group(title, Padding(Text(summary.NOTHING_COMPILED), (0, 0, 0, 2)), *_ends(report))
    facts = Table.grid(padding=(0, 2, 0, 0))
    for name, (value, detail) in summary.key_figures(report).items():
        facts.add_row(Text(name, "dim"), Text(value), Text(detail, "dim"))
    return Group(title, Padding(facts, (0, 0, 0, 2)), *_graphs(report), *_ends(report))


def _graphs(report: ReportData) -> list[RenderableType]:
    """The graphs that ran, each with its table; where there are many, those with fallbacks."""
    ran = [graph for graph in report.graphs if graph.ran]
    ordered = sorted(range(len(ran)), key=lambda number: not ran[number].fallback_reasons)
    parts: list[RenderableType] = []
    for number in sorted(ordered[:_GRAPHS]):
        graph = ran[number]
        parts += [Text(), _graph_title(graph), Padding(_graph_table(graph), (0, 0, 0, 2))]
    for what, graphs in (
        ("", [ran[number] for number in ordered[_GRAPHS:]]),
        (" that did not run in this call", [graph for graph in report.graphs if not graph.ran]),
    ):
        if graphs:
            parts += [Text(), _summary(what, graphs)]
    return parts


def _graph_title(graph: GraphReport) -> Text:
    facts = summary.graph_times(graph)
    return Text.assemble(
        (wording.clip(graph.name, _LONGEST), "bold"),
        f" ({wording.printable(summary.graph_origin(graph))})",
        (f": {facts}" if facts else "", "dim"),
    )


def _summary(what: str, graphs: Sequence[GraphReport]) -> Text:
    """Graphs that get no table, in one line."""
    segments = sum(len(graph.segments) for graph in graphs)
    on_device = sum(graph.on_device for graph in graphs)
    operators = {name for graph in graphs for part in graph.segments for name in part.operators}
    reasons = {
        (found.operator, found.reason) for graph in graphs for found in graph.fallback_reasons
    }
    seconds = wording.duration(sum(graph.compile_seconds for graph in graphs))
    return Text(
        f"+{wording.plural(len(graphs), 'more graph')}{what}, compiled in"
        f" {seconds}: {wording.plural(segments, 'segment')}, {on_device} of them on the device;"
        f" {wording.plural(len(operators), 'different operator')},"
        f" {wording.plural(len(reasons), 'different reason')} for the host",
        "dim",
    )


def _graph_table(graph: GraphReport) -> RenderableType:
    if not graph.segments:
        return Text("it computes nothing: its results are arguments or constants", "dim")
    rows = short_rows(graph)
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    table.add_column("#", max_width=_NUMBER_WIDTH)
    table.add_column("where", no_wrap=True)
    what = "operators, and why on the host" if any(row.reasons for row in rows) else "operators"
    table.add_column(what, overflow="fold", ratio=1, min_width=24)
    shown = [
        (name, cell)
        for name, cell in _QUANTITIES
        if any(cell(row) not in ("", "-") for row in rows)
    ]
    for name, _ in shown:
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        numbers = wording.listed([str(number) for number in row.numbers], _NUMBERS)
        where = Text(row.placement, _COLORS[row.placement])
        table.add_row(Text(numbers), where, _content(row), *(Text(cell(row)) for _, cell in shown))
    table.expand = True
    return table


def _bytes(count: int) -> str:
    return wording.byte_size(count) if count else "-"


_QUANTITIES: Sequence[tuple[str, Callable[[Row], str]]] = (
    ("in place", lambda row: _bytes(row.bytes_shared)),
    ("copied", lambda row: _bytes(row.bytes_copied)),
    ("compile", lambda row: row.compilation or "-"),
    ("run", lambda row: "-" if row.run_seconds is None else wording.duration(row.run_seconds)),
)


def _content(row: Row) -> RenderableType:
    parts: list[RenderableType] = []
    if row.operators:
        operators = wording.counted(row.operators.items())
        parts.append(Text(wording.listed(operators, _OPERATORS, "operator")))
    if row.exchanges:
        parts.append(Text(f"each device gets by {row.exchanged}", "dim"))
    for reason in row.reasons[:_REASONS]:
        parts.append(_reason(row, reason))
        sources = [wording.clip(source, _LONGEST) for source in reason.sources[:_SOURCES]]
        if len(reason.sources) > _SOURCES:
            sources[-1] += f"  +{wording.plural(len(reason.sources) - _SOURCES, 'more line')}"
        parts += [Padding(Text(source, "dim"), (0, 0, 0, 2)) for source in sources]
    rest = row.reasons[_REASONS:]
    if rest:
        names = {reason.operator for reason in rest if reason.operator}
        lines = {source for reason in rest for source in reason.sources}
        parts.append(
            Text(
                f"+{wording.plural(len(rest), 'more reason')},"
                f" of {wording.plural(len(names), 'operator')}"
                f" in {wording.plural(len(lines), 'line')}",
                "dim",
            )
        )
    return Group(*parts) if parts else Text("-")


def _reason(row: Row, reason: MergedReason) -> Text:
    explained = wording.clip(reason.text, _LONGEST)
    if row.placement == "device":
        explained = f"recovered from: {explained}"
    if not reason.operator:
        return Text(explained)
    (operator,) = wording.counted([(reason.operator, reason.count)])
    return Text.assemble((operator, "bold"), f": {explained}")


def _ends(report: ReportData) -> list[RenderableType]:
    again = [
        f"{wording.printable(graph.name)}: {wording.clip(graph.trigger or '', _LONGEST)}"
        for graph in report.recompilations
    ]
    breaks = [wording.clip(found, LONGEST_BREAK) for found in report.breaks]
    parts: list[RenderableType] = []
    for title, lines in (
        ("Compiled again", again),
        ("Where the framework divided the program", breaks),
        ("What to do", advise(report)),
    ):
        if lines:
            parts += [Text(), Text(title, "bold"), _bullets(lines)]
    return parts


def _bullets(lines: Sequence[str]) -> Table:
    table = Table.grid(padding=(0, 1, 0, 0))
    table.add_column(width=3, justify="right")
    table.add_column(overflow="fold")
    for line in lines[:_LINES]:
        table.add_row("-", Text(line))
    if len(lines) > _LINES:
        table.add_row("", Text(f"+{len(lines) - _LINES} more", "dim"))
    return table
