"""A report as one self-contained HTML page: no script, no font, no other file, no network."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

from pjrt_bridge.report import summary, wording
from pjrt_bridge.report.advice import advise
from pjrt_bridge.report.data import GraphReport, ReportData
from pjrt_bridge.report.picture import picture
from pjrt_bridge.report.rows import MergedReason, Row, single_rows
from pjrt_bridge.report.style import STYLE

_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
"""Content security policy: a browser runs no script, should a name ever escape its quotes."""

_SHOWN = 6


def page(report: ReportData) -> str:
    """The report as HTML."""
    return "".join(
        [
            '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{_safe(report.program)}</title><style>{STYLE}</style></head><body><main>",
            f"<h1>{_safe(report.program)}</h1>",
            f'<p class="summary">{_safe(_sentence(summary.placement_sentence(report)))}</p>',
            _numbers(report) if report.graphs else f"<p>{_safe(summary.NOTHING_COMPILED)}</p>",
            _list("What to do", advise(report), "advice"),
            *(_graph(graph, number) for number, graph in enumerate(report.graphs)),
            _recompilations(report),
            _list("Where the framework divided the program", report.breaks),
            "</main></body></html>\n",
        ]
    )


def _safe(text: str) -> str:
    return html.escape(wording.printable(text))


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


def _numbers(report: ReportData) -> str:
    part, whole = summary.device_operators(report)
    bar = ""
    if whole:
        bar = (
            '<div class="bar" role="img" aria-label="share of the operators on the device">'
            f'<div style="width:{100 * part / whole:.2f}%"></div></div>'
        )
    tiles = "".join(
        f"<div><dt>{_safe(name)}</dt><dd><b>{_safe(value)}</b><span>{_safe(detail)}</span></dd></div>"
        for name, (value, detail) in summary.key_figures(report).items()
    )
    return f'{bar}<dl class="numbers">{tiles}</dl>'


def _list(title: str, lines: Iterable[str], kind: str = "plain") -> str:
    items = "".join(f"<li>{_safe(line)}</li>" for line in lines)
    return f'<section class="{kind}"><h2>{title}</h2><ul>{items}</ul></section>' if items else ""


def _recompilations(report: ReportData) -> str:
    lines = [f"{graph.name}: {graph.trigger}" for graph in report.recompilations]
    return _list("Compiled again", lines)


def _graph(graph: GraphReport, number: int) -> str:
    facts = summary.graph_times(graph)
    title = (
        f"{_safe(graph.name)} <small>{_safe(summary.graph_origin(graph))}"
        f"{', ' + _safe(facts) if facts else ''}</small>"
    )
    anchor = f"g{number}s"
    content = (
        f'<figure><div class="scroll">{picture(graph, anchor)}</div><figcaption>Segments in running'
        " order; an arrow is a segment that reads what another made. A box leads to its row."
        f"</figcaption></figure>{_table(graph, anchor)}"
        if graph.segments
        else "<p>It computes nothing: its results are arguments or constants.</p>"
    )
    if graph.ran:
        return f'<section class="graph"><h2>{title}</h2>{content}</section>'
    return (
        f'<section class="graph"><details><summary><h2>{title}</h2> did not run in this call'
        f"</summary>{content}</details></section>"
    )


def _table(graph: GraphReport, anchor: str) -> str:
    names = ("#", "where", "operators", "why", "in place", "copied", "compile", "run")
    head = "".join(f'<th scope="col">{name}</th>' for name in names)
    body = "".join(_row(row, anchor) for row in single_rows(graph))
    return (
        f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'
        "</div>"
    )


def _row(row: Row, anchor: str) -> str:
    (number,) = row.numbers
    counts = [*row.operators.items()]
    counts += [(reason.operator, reason.count) for reason in row.reasons if reason.count]
    copied = "copied" if row.bytes_copied else ""
    return (
        f'<tr id="{anchor}{number}" class="{row.placement}"><th scope="row">{number}</th>'
        f'<td><span class="place {row.placement}">{row.placement}</span></td>'
        f"<td>{_operators(wording.counted(counts))}</td><td>{_reasons(row)}</td>"
        f"<td>{wording.byte_size(row.bytes_shared) if row.bytes_shared else ''}</td>"
        f'<td class="{copied}">{wording.byte_size(row.bytes_copied) if copied else ""}</td>'
        f"<td>{row.compilation}</td>"
        f"<td>{'' if row.run_seconds is None else wording.duration(row.run_seconds)}</td></tr>"
    )


def _operators(operators: Sequence[str]) -> str:
    codes = [f"<code>{_safe(operator)}</code>" for operator in operators]
    shown, rest = " ".join(codes[:_SHOWN]), codes[_SHOWN:]
    if not rest:
        return shown
    return f"{shown} <details><summary>+{len(rest)} more</summary>{' '.join(rest)}</details>"


def _reasons(row: Row) -> str:
    items = "".join(
        f'<li><span class="kind">{_kind(row, reason)}</span> {_reason(reason)}</li>'
        for reason in row.reasons
    )
    if row.exchanges:
        items += f'<li><span class="kind">exchange</span> {_safe(row.exchanged)}</li>'
    return f"<ul>{items}</ul>" if items else ""


def _kind(row: Row, reason: MergedReason) -> str:
    return "recovered" if row.placement == "device" else reason.kind


def _reason(reason: MergedReason) -> str:
    operator = f"<code>{_safe(reason.operator)}</code>: " if reason.operator else ""
    sources = "".join(f'<code class="source">{_safe(source)}</code>' for source in reason.sources)
    return f"{operator}{_safe(reason.text)}{sources}"
