"""`python -m benchmarks.gpu`: models on a GPU, right and fast, beside others.

Ends within the given minutes, and writes after each work what it has. The status is 1 if a result
of the bridge is wrong. `--small --device cpu --plugin cpu` rehearses a run without a GPU.
"""

from __future__ import annotations

import dataclasses
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.gpu import page
from benchmarks.gpu.results import Report
from benchmarks.gpu.turns import Processes, Settings, Turns, start
from benchmarks.gpu.works import SIDES, WORKS, Work
from benchmarks.machine import machine, version
from benchmarks.processes import Missing

app = typer.Typer(add_completion=False)

_PACKAGES = ("jax", "triton", "jax-cuda13-pjrt", "jax-cuda12-pjrt")
_TUNED = ("inductor tuned",)
_ENDING = 10
"""Seconds that processes take to end."""


def chosen(only: Sequence[str], *, small: bool, tuned: bool) -> list[Work]:
    """The works whose names have one of the texts, or all.

    Raises:
        typer.BadParameter: a text is in no name.
    """
    works = [work.shrunk() if small else work for work in WORKS]
    if tuned:
        works = [
            dataclasses.replace(work, sides=(*work.sides, *_TUNED))
            if "inductor" in work.sides and not work.start
            else work
            for work in works
        ]
    # Shrunk works of several batches are one.
    works = list({work.name: work for work in works}.values())
    for text in only:
        if not any(text in work.name for work in works):
            known = "; ".join(work.name for work in works)
            raise typer.BadParameter(f"found {text!r}, expected a part of one of: {known}")
    return [work for work in works if not only or any(text in work.name for text in only)]


def measure(
    works: Sequence[Work],
    sides: Sequence[str],
    settings: Settings,
    keep: Callable[[Report], object],
) -> Report:
    """Measure works as long as there is time.

    Args:
        works: in this order.
        sides: who may take part.
        settings: how.
        keep: is given what there is after each work.
    """
    small = any(work.small for work in works)
    report = Report(_machine(settings))
    with Processes(settings) as processes:
        report.peaks = _asked(settings, processes.get("eager"), "peaks", small)
        # The first work is none to go by: processes start, and libraries are loaded.
        longest = 0.0
        for at, work in enumerate(works):
            begun = time.monotonic()
            if settings.left() < longest + 5:
                report.left_out = [left.name for left in works[at:]]
                break
            report.results.append(Turns(work, sides, settings, processes).measure())
            longest = max(longest, time.monotonic() - begun) if at else 0.0
            print(page.lines(report.results[-1], report.peaks), flush=True)
            keep(report)
    if settings.left() > 20:
        with start(settings, "pjrt", settings.disk / "caches") as process:
            report.beside = _asked(settings, process, "beside", small)
    keep(report)
    return report


def _asked(settings: Settings, process: Any, what: str, small: bool) -> dict[str, Any]:
    try:
        found: dict[str, Any] = process.ask(
            what, patience=settings.patience(90), device=settings.device, small=small
        )
    except Missing as missing:
        return {missing.status: missing.reason}
    return found


def _machine(settings: Settings) -> dict[str, str]:
    found = {**machine(), **{package: version(package) for package in _PACKAGES}}
    if settings.device == "cuda":
        asked = [
            "nvidia-smi",
            "--query-gpu=name,driver_version,memory.total",
            "--format=csv,noheader",
        ]
        try:
            done = subprocess.run(asked, capture_output=True, text=True, timeout=20, check=False)
            found["GPU"] = done.stdout.strip()
        except (OSError, subprocess.TimeoutExpired) as error:
            found["GPU"] = f"not told: {error}"
    return found


@app.command()
def main(
    only: Annotated[
        list[str] | None, typer.Option(help="A part of works' names; repeatable.")
    ] = None,
    sides: Annotated[
        list[str] | None, typer.Option("--side", help="Who takes part; repeatable.")
    ] = None,
    minutes: Annotated[float, typer.Option(help="It ends within.", min=0)] = 9,
    rounds: Annotated[int, typer.Option(help="Rounds, at most.", min=1)] = Settings.rounds,
    tuned: Annotated[bool, typer.Option(help="Inductor with max-autotune, too.")] = False,
    small: Annotated[bool, typer.Option(help="Few and small layers.")] = False,
    device: Annotated[str, typer.Option(help="PyTorch's: cuda or cpu.")] = "cuda",
    plugin: Annotated[str, typer.Option(help="The plugin's name.")] = "cuda",
    output: Annotated[Path | None, typer.Option("--json", help="Write everything as JSON.")] = None,
    logs: Annotated[
        Path | None, typer.Option(help="Keep in this folder what the processes print.")
    ] = None,
    read: Annotated[
        Path | None, typer.Option(help="Show an earlier run's JSON instead of measuring.")
    ] = None,
    document: Annotated[
        Path | None, typer.Option(help="Put the tables into a page like docs/performance.md.")
    ] = None,
) -> None:
    """Measure models on a GPU; every ratio is one of medians from the same rounds."""
    deadline = time.monotonic() + 60 * minutes - _ENDING
    for side in sides or ():
        if side not in SIDES:
            raise typer.BadParameter(f"found {side!r}, expected one of {', '.join(SIDES)}")
    works = chosen(only or (), small=small, tuned=tuned)
    if document is not None:
        try:
            page.with_section(document.read_text(), "")
        except (OSError, ValueError) as error:
            raise typer.BadParameter(f"--document {document}: {error}") from error

    def keep(report: Report) -> None:
        if output is not None:
            report.write(output)
        if document is not None:
            document.write_text(page.with_section(document.read_text(), page.section(report)))

    if read is not None:
        try:
            report = Report.read(read)
        except (OSError, ValueError) as error:
            raise typer.BadParameter(f"--read: {error}") from error
        for result in report.results:
            print(page.lines(result, report.peaks))
        keep(report)
    else:
        with tempfile.TemporaryDirectory(prefix="benchmarks-", ignore_cleanup_errors=True) as disk:
            folder = Path(disk) if logs is None else logs.absolute()
            folder.mkdir(parents=True, exist_ok=True)
            platforms = "cuda,cpu" if device == "cuda" else "cpu"
            settings = Settings(device, plugin, platforms, folder, deadline, rounds)
            report = measure(works, sides or tuple(SIDES), settings, keep)
    for name in report.left_out:
        print(f"no time: {name}")
    if report.wrong():
        print("wrong:", *report.wrong(), sep="\n  ")
        sys.exit(1)


if __name__ == "__main__":
    app()
