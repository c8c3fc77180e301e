"""`make bench`: the bridge beside eager PyTorch, Inductor, jax.jit, tf.function and a loop in C.

Cases are declared in `benchmarks.cases`, single figures in the modules that `benchmarks.figures`
names. The coordinator, here, measures nothing itself.
"""

from __future__ import annotations

import dataclasses
import os
import random
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks import document, figures, plot, table
from benchmarks.case import Case
from benchmarks.cases import FAMILIES, SUITES, WORLD
from benchmarks.journal import Journal
from benchmarks.machine import machine
from benchmarks.processes import Missing
from benchmarks.results import Report
from benchmarks.turns import Settings, Turns, try_kernels

app = typer.Typer(add_completion=False)

_QUICK = Settings(rounds=3, sample=1e-3, budget=1)


@dataclasses.dataclass(frozen=True)
class Chosen:
    """What is to be measured: cases with their families, and families of figures."""

    cases: Sequence[tuple[str, Case]]
    figures: Sequence[str]

    @staticmethod
    def of(only: Sequence[str], *, quick: bool) -> Chosen:
        """What the user asks for.

        Raises:
            typer.BadParameter: nothing has such a name.
        """
        cases = [
            (family, case)
            for family, members in FAMILIES.items()
            for case in members
            if case.quick or not quick
        ]
        cases = _shuffled(cases)
        families = [] if quick else list(figures.FAMILIES)
        if not only:
            return Chosen(cases, families)
        for word in only:
            if word not in families and not any(_fits(word, *item) for item in cases):
                known = ", ".join([*FAMILIES, "world", *figures.FAMILIES])
                raise typer.BadParameter(
                    f"found {word!r}, expected a family ({known}) or a part of a case's name; "
                    "--list shows them"
                )
        return Chosen(
            [item for item in cases if any(_fits(word, *item) for word in only)],
            [family for family in families if family in only],
        )


def _shuffled(cases: Sequence[tuple[str, Case]]) -> list[tuple[str, Case]]:
    """The cases of the world's suite behind all others, in a random order that each run has."""
    world = [item for item in cases if item[0] in WORLD]
    random.Random(0).shuffle(world)
    return [item for item in cases if item[0] not in WORLD] + world


def _fits(word: str, family: str, case: Case) -> bool:
    if word == "world":
        return family in WORLD
    if word in FAMILIES or word in figures.FAMILIES:
        return word == family
    return word in case.name


def measure(
    chosen: Chosen,
    settings: Settings,
    console: Console,
    minutes: float,
    journal: Journal,
    *,
    tries_first: bool = False,
) -> Report:
    """Measure what was chosen, and show how far it is.

    Args:
        chosen: what.
        settings: how.
        console: to show it on.
        minutes: after these no further model of the world's suite is begun.
        journal: of cases that are not measured again.
        tries_first: try and measure the kernels that the CPU plugin's package calls before the
            first case. Else it does so beside the cases, on a processor that it does not know.
    """
    started = time.monotonic()
    results, found, failures = [], [], {}
    spent = 0.0
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()
    with (
        tempfile.TemporaryDirectory(prefix="benchmarks-") as disk,
        Progress(*columns, TimeElapsedColumn(), console=console, transient=True) as progress,
    ):
        task = progress.add_task("", total=len(chosen.cases) + len(chosen.figures))
        if tries_first and chosen.cases:
            progress.update(task, description="the CPU plugin's kernels are tried")
            try_kernels(Path(disk))
        for family, case in chosen.cases:
            progress.update(task, description=f"{family}: {case.name}")
            progress.advance(task)
            result = journal.find(case.name)
            if result is None:
                if family in WORLD and spent > 60 * minutes:
                    continue
                begun = time.monotonic()
                result = Turns(family, case, settings, Path(disk)).measure()
                spent += time.monotonic() - begun if family in WORLD else 0.0
                journal.add(result)
                console.log(f"{family}: {case.name}", markup=False)
            results.append(result)
        for name in chosen.figures:
            progress.update(task, description=name)
            try:
                found += list(figures.measure(name, settings.rounds))
            except Missing as missing:
                failures[name] = missing.reason
            progress.advance(task)
    seconds = time.monotonic() - started
    return Report(machine(), results, found, failures, SUITES, seconds)


def _lines(chosen: Chosen) -> Iterator[str]:
    for family, case in chosen.cases:
        yield f"{family}: {case.name} ({', '.join(case.competitors)})"
    for name in chosen.figures:
        yield f"{name}: figures"


def _write(report: Report, output: Path | None, picture: Path | None, page: Path | None) -> None:
    if output is not None:
        output.write_text(report.to_json())
    if picture is not None:
        plot.draw(report, picture)
    if page is not None:
        beside = page.with_suffix(".svg")
        try:
            plot.draw(report, beside)
        except ValueError:
            # Nothing to draw: only starts were measured, say.
            document.write(report, page, None)
        else:
            document.write(report, page, beside)


def _check(picture: Path | None, page: Path | None) -> None:
    for option, path in (("--plot", picture), ("--document", page and page.with_suffix(".svg"))):
        try:
            if path is not None:
                plot.check(path)
        except (ImportError, ValueError) as error:
            raise typer.BadParameter(f"{option}: {error}") from error


def _interpreters(**named: str | None) -> dict[str, str]:
    # Relative to where the user is; workers run in the repository.
    return {name: os.path.abspath(path) for name, path in named.items() if path}


def _without(*, inductor: bool, tuned: bool) -> frozenset[str]:
    """Who is not wanted."""
    if not inductor:
        return frozenset({"inductor", "inductor warm", "inductor tuned"})
    return frozenset() if tuned else frozenset({"inductor tuned"})


@app.command()
def main(
    only: Annotated[
        list[str] | None, typer.Option(help="A family, or a part of cases' names; repeatable.")
    ] = None,
    rounds: Annotated[
        int, typer.Option(help="Rounds of a case, at most.", min=1)
    ] = Settings.rounds,
    quick: Annotated[bool, typer.Option(help="Small cases alone, few rounds.")] = False,
    inductor: Annotated[bool, typer.Option(help="Measure Inductor too.")] = True,
    tuned: Annotated[
        bool, typer.Option(help="Measure Inductor with freezing and max_autotune, too.")
    ] = False,
    minutes: Annotated[
        float,
        typer.Option(help="For the models of the world's suite, drawn by chance.", min=0),
    ] = 10,
    journal: Annotated[
        Path | None,
        typer.Option(help="Keep results of cases here; those that it has are not measured again."),
    ] = None,
    jax: Annotated[
        str | None,
        typer.Option(metavar="PYTHON", envvar="BENCHMARKS_JAX", help="An interpreter with JAX."),
    ] = None,
    torch_xla: Annotated[
        str | None,
        typer.Option(metavar="PYTHON", envvar="BENCHMARKS_TORCH_XLA", help="One with PyTorch/XLA."),
    ] = None,
    list_: Annotated[bool, typer.Option("--list", help="Show what there is, and end.")] = False,
    read: Annotated[
        Path | None, typer.Option(help="Take an earlier run's JSON instead of measuring.")
    ] = None,
    output: Annotated[Path | None, typer.Option(help="Write everything as JSON.")] = None,
    picture: Annotated[
        Path | None, typer.Option("--plot", help="Write a plot, .svg or .png.")
    ] = None,
    page: Annotated[
        Path | None, typer.Option("--document", help="Write a page like docs/performance.md.")
    ] = None,
) -> None:
    """Measure the bridge beside others; every ratio is one of medians from the same rounds."""
    console = Console()
    _check(picture, page)
    chosen = Chosen.of(only or [], quick=quick)
    if list_:
        for line in _lines(chosen):
            console.print(line, markup=False, highlight=False, soft_wrap=True)
        return
    settings = dataclasses.replace(
        _QUICK if quick else Settings(rounds=rounds),
        interpreters=_interpreters(jax=jax, torch_xla=torch_xla),
        without=_without(inductor=inductor, tuned=tuned),
    )
    if read is not None:
        try:
            report = Report.from_json(read.read_text())
        except (OSError, ValueError) as error:
            raise typer.BadParameter(f"--read {read}: {error}") from error
    else:
        try:
            kept = Journal(journal)
        except ValueError as error:
            raise typer.BadParameter(f"--journal: {error}") from error
        report = measure(chosen, settings, console, minutes, kept, tries_first=not quick)
    console.print(", ".join(f"{name} {value}" for name, value in report.machine.items()))
    table.show(console, report)
    console.print(f"{report.seconds / 60:.1f} minutes")
    _write(report, output, picture, page)


if __name__ == "__main__":
    app()
