"""`pjrt-bridge conformance`: whether a plugin does what any PJRT plugin has to do."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from pjrt_bridge import registry
from pjrt_bridge.cli.console import columns, facts, fail, out, parse_options
from pjrt_bridge.cli.plugins import ClientOptions

if TYPE_CHECKING:
    from pjrt_bridge_conformance import Check, Report, Result
    from pjrt_bridge_conformance.context import Subject

_COLORS = {
    "pass": "green",
    "fail": "red",
    "crash": "red",
    "hang": "red",
    "unsupported": "yellow",
    "absent device": "cyan",
    "not run": "dim",
}
_KIND_COLORS = {"worse": "red", "better": "green"}


def conformance(
    name: Annotated[
        str | None,
        typer.Argument(help="A plugin's name, a library, or name:library.", metavar="NAME"),
    ] = None,
    json: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write the results to a file.")
    ] = None,
    diff: Annotated[
        tuple[Path, Path] | None,
        typer.Option("--diff", metavar="A B", help="Compare two result files; runs no checks."),
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(
            "--only", metavar="PATTERN", help="A group, a check, or a pattern with *. Repeatable."
        ),
    ] = None,
    list_checks: Annotated[bool, typer.Option("--list", help="List the checks and exit.")] = False,
    checks: Annotated[
        list[str] | None,
        typer.Option("--checks", metavar="MODULE", help="A module with additional checks."),
    ] = None,
    limit: Annotated[
        float, typer.Option("--limit", min=1, help="Seconds that a check may take.")
    ] = 120.0,
    option: ClientOptions = None,
) -> None:
    """Check a plugin: ABI, data, numerics, asynchrony, several devices, errors, extensions.

    A check passes, fails, is unsupported (the plugin reports that with a regular error), or lacks
    its device. Checks run in a separate process, so a crash or a hang is reported as a finding.
    Exit status 1 means that there are defects, or with --diff that a result is worse.
    """
    _require_suite()
    from pjrt_bridge_conformance import Report, suite
    from pjrt_bridge_conformance.context import Subject
    from pjrt_bridge_conformance.suite import selected

    if diff is not None:
        raise typer.Exit(_print_differences(Report.read(diff[0]), Report.read(diff[1])))
    modules = tuple(checks or ())
    wanted = selected(suite(modules), only or ())
    if list_checks:
        _print_list(wanted)
        return
    if name is None:
        fail("expected the NAME of a plugin; `pjrt-bridge plugins` lists them")
        raise typer.Exit(2)
    registry.select(name)
    # What a plugin logs about each client is read by nobody, except where it died.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")
    subject = Subject(name, parse_options(option or ()), modules)
    report = _run_with_progress(subject, wanted, limit)
    _print_report(report)
    if json is not None:
        json.write_text(report.to_json(), encoding="utf-8")
        out().print(f"wrote {json}", markup=False)
    raise typer.Exit(0 if report.passed else 1)


def _require_suite() -> None:
    """End the command where the package with the checks is not installed, and say which it is."""
    if find_spec("pjrt_bridge_conformance") is None:
        fail(
            "the checks are a package of their own, which is not installed; run: "
            "pip install 'pjrt-bridge[conformance]'"
        )
        raise typer.Exit(2)


def _run_with_progress(subject: Subject, wanted: Sequence[Check], limit: float) -> Report:
    from pjrt_bridge_conformance import run

    console = Console(stderr=True)
    progress = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
    with progress:
        task = progress.add_task("", total=len(wanted))

        def show(result: Result) -> None:
            if result.status.defect:
                console.print(_line(result))
            progress.update(task, advance=1, description=result.group)

        return run(subject, wanted, limit=limit, progress=show)


def _line(result: Result) -> Text:
    label = (result.status.value, _COLORS[result.status])
    return Text.assemble(label, f" {result.name}: {result.reason}")


def _print_report(report: Report) -> None:
    console = out()
    plugin = report.plugin
    console.print(Text(str(plugin["name"]), "bold"))
    rows = {
        "library": plugin.get("library"),
        "PJRT API": ".".join(map(str, plugin.get("api_version", ()))),
        "platform": plugin.get("platform_name"),
        "devices": len(plugin.get("devices", ())),
    }
    console.print(facts({key: value for key, value in rows.items() if value}))
    statuses = list(report.counts)
    table = columns("group", *(status.value for status in statuses), "seconds")
    for group in dict.fromkeys(result.group for result in report.results):
        results = [result for result in report.results if result.group == group]
        counts = Counter(result.status for result in results)
        cells = [
            Text(str(counts[status] or ""), _COLORS[status], justify="right") for status in statuses
        ]
        seconds = sum(result.seconds for result in results)
        table.add_row(group, *cells, Text(f"{seconds:.1f}", justify="right"))
    console.print()
    console.print(table)
    _print_reasons(report)
    _print_sum(report)


def _print_reasons(report: Report) -> None:
    """What is not a pass, and why; checks with one reason share a line."""
    shared: dict[tuple[str, str], list[str]] = {}
    for result in report.results:
        if result.reason:
            shared.setdefault((result.status.value, result.reason), []).append(result.name)
    if shared:
        out().print()
    for (status, reason), names in shared.items():
        listed = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
        out().print(Text.assemble((status, _COLORS[status]), f" {listed}: {reason}"))


def _print_sum(report: Report) -> None:
    parts = [f"{count} {status.value}" for status, count in report.counts.items()]
    total = f"\n{len(report.results)} checks in {report.seconds:.0f} s: {', '.join(parts)}"
    out().print(Text(total, "green" if report.passed else "red"))


def _print_list(checks: Sequence[Check]) -> None:
    console = out()
    for check in checks:
        console.print(Text.assemble((check.name, "bold"), f"  {check.sentence}"))
    console.print(f"{len(checks)} checks")


def _print_differences(before: Report, after: Report) -> int:
    from pjrt_bridge_conformance import compare

    found = compare(before, after)
    console = out()
    for one in found:
        first = "not there" if one.before is None else one.before.status.value
        second = "not there" if one.after is None else one.after.status.value
        reason = one.after.reason if one.after is not None else ""
        console.print(
            Text.assemble(
                (one.kind, _KIND_COLORS.get(one.kind, "yellow")),
                f" {one.name}: {first} -> {second}{': ' if reason else ''}{reason}",
            )
        )
    counts = Counter(one.kind for one in found)
    summary = ", ".join(f"{count} {kind}" for kind, count in counts.items())
    console.print(summary or "no differences")
    return 1 if counts["worse"] else 0
