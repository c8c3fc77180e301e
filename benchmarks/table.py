"""A report for the terminal."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from benchmarks.results import Outcome, Report, Result, base_of, shown

_COLORS = {True: "green", False: "red", None: "yellow"}


def show(console: Console, report: Report) -> None:
    """Print every case, then what was asked for."""
    for family, results in report.families().items():
        console.print(_cases(family, results))
    if report.means():
        console.print(_means(report))
    if report.verdicts():
        console.print(_asked(report))
    for family, reason in report.failures.items():
        console.print(f"[red]{family}: {escape(reason)}[/]")


def _cases(family: str, results: list[Result]) -> Table:
    base = base_of(results)
    table = Table("case", "competitor", "median", "best", f"of {base}", title=family)
    for column in table.columns[2:]:
        column.justify = "right"
    for result in results:
        case = result.case
        for name, outcome in result.outcomes.items():
            table.add_row(case, name, *_numbers(result, name, outcome, base))
            case = ""
        table.add_section()
    return table


def _numbers(result: Result, name: str, outcome: Outcome, base: str) -> tuple[str, str, str]:
    if outcome.median is None or outcome.best is None:
        color = "red" if outcome.status == "failed" else "yellow"
        reason = f": {escape(outcome.reason)}" if outcome.status == "failed" else ""
        return f"[{color}]{outcome.status}[/]{reason}", "", ""
    ratio = result.ratio(name, [base])
    return (
        shown(outcome.median, result.unit),
        shown(outcome.best, result.unit),
        "" if ratio is None else f"{ratio:.2f}x",
    )


def _means(report: Report) -> Table:
    table = Table("family", "cases", "geometric mean of pjrt / better of eager and Inductor")
    for family, (mean, count) in report.means().items():
        table.add_row(family, str(count), f"{mean:.2f}x")
    return table


def _asked(report: Report) -> Table:
    table = Table("what", "found", "asked", "sides", title="asked")
    for verdict in report.verdicts():
        found = "not known" if verdict.found is None else f"{verdict.found:.2f} {verdict.unit}"
        table.add_row(
            escape(verdict.what),
            f"[{_COLORS[verdict.met]}]{found}[/]",
            f"{verdict.asked:g} {verdict.unit}",
            escape(verdict.sides),
        )
    return table
