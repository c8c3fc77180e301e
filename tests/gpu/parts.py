"""The parts of a run on a GPU: their commands, and the numbers that each of them leaves."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from tests.gpu.jobs import Job, Outcome
from tests.gpu.machine import ROOT

CONFORMANCE = (
    ("abi", "errors", "executables", "serialization"),
    ("async", "donation", "layouts"),
    ("data",),
    ("devices", "collectives", "extensions"),
    ("lifecycle",),
    *((f"numerics.[{letters}]*",) for letters in ("ab", "d-l", "m", "n-q", "r", "s", "t-z")),
    ("numerics.c[a-n]*",),
    ("numerics.c[o-z]*",),
)
"""Patterns of checks, for one process each; they were chosen to take equally long."""

SUITES = ("tests/gpu", "tests/accelerators")
"""Folders whose modules of tests run in a process each."""

UNHEARD = ("-W", "ignore:`torch.jit.script_method`:DeprecationWarning")
"""Releases of torch before those that the project supports warn of their own imports."""

FILLING = frozenset({"test_failures"})
"""Modules whose tests take all of the GPU's memory, which others would lack."""

Numbers = Callable[[Sequence[Outcome], Path], dict[str, Any]]


@dataclass(frozen=True)
class Part:
    """A part of a run.

    Attributes:
        name: of it.
        jobs: makes its commands; they may write into the folder that is given.
        numbers: what the outcomes of the jobs, and the files in that folder, say.
    """

    name: str
    jobs: Callable[[Path], Sequence[Job]]
    numbers: Numbers


def _python(*arguments: str) -> tuple[str, ...]:
    return (sys.executable, *arguments)


def _on_gpu(*arguments: str) -> tuple[str, ...]:
    """The same with device `pjrt` on the GPU."""
    return ("env", "TEST_PLUGIN=cuda", *_python(*arguments))


# -- conformance -----------------------------------------------------------------------------------


def _conformance(files: Path) -> list[Job]:
    jobs = []
    for number, patterns in enumerate(CONFORMANCE):
        only = [argument for one in patterns for argument in ("--only", one)]
        report = ("--json", str(files / f"conformance.{number}.json"))
        command = _python("-m", "pjrt_bridge", "conformance", "cuda", *report, *only)
        jobs.append(Job("conformance", str(number), command, limit=300))
    return jobs


def _conformance_numbers(outcomes: Sequence[Outcome], files: Path) -> dict[str, Any]:
    """Checks by status, and the reasons of those that are no pass."""
    checks: dict[str, dict[str, Any]] = {}
    for file in sorted(files.glob("conformance.*.json")):
        checks |= {one["name"]: one for one in json.loads(file.read_text())["checks"]}
    counts = Counter(one["status"] for one in checks.values())
    reasons: dict[str, dict[str, str]] = {}
    for name, one in sorted(checks.items()):
        if one["status"] not in ("pass", "absent device"):
            reasons.setdefault(one["status"], {})[name] = one["reason"]
    return {"checks": len(checks), "counts": dict(counts), "reasons": reasons}


# -- tests -----------------------------------------------------------------------------------------


def _tests(files: Path) -> list[Job]:
    jobs = []
    for module in (one for suite in SUITES for one in sorted((ROOT / suite).glob("test_*.py"))):
        name = f"{module.parent.name}.{module.stem}"
        report = f"--junitxml={files / f'tests.{name}.xml'}"
        # A process each, since a test may end its own.
        options = ("-q", "-rs", "-p", "no:cacheprovider", "--durations=5", report, *UNHEARD)
        command = _python("-m", "pytest", *options, str(module.relative_to(ROOT)))
        alone = module.stem in FILLING
        jobs.append(Job("tests", name, command, limit=400, alone=alone))
    return jobs


def _tests_numbers(outcomes: Sequence[Outcome], files: Path) -> dict[str, Any]:
    """Tests by outcome, with what failed and why, and why something was skipped."""
    counts: Counter[str] = Counter()
    failed, skipped = {}, {}
    for outcome in outcomes:
        file = files / f"tests.{outcome.job.name}.xml"
        if not file.exists():
            failed[outcome.job.name] = f"no report; {_tail(outcome.log)}"
            continue
        for case in ElementTree.parse(file).iter("testcase"):
            name = f"{outcome.job.name}::{case.get('name')}"
            bad = next((one for one in case if one.tag in ("failure", "error")), None)
            skip = case.find("skipped")
            if bad is not None:
                counts["failed"] += 1
                failed[name] = (bad.get("message") or "")[:600]
            elif skip is not None:
                counts["skipped"] += 1
                skipped[name] = skip.get("message") or ""
            else:
                counts["passed"] += 1
    return {"counts": dict(counts), "failed": failed, "skipped": skipped}


# -- sweeps over operators, models and random programs ---------------------------------------------


def _sweep(name: str, minutes: float, *options: str) -> Callable[[Path], list[Job]]:
    """The jobs of `python -m tests.NAME`, on the default plugin: that with the device."""

    def jobs(files: Path) -> list[Job]:
        cores = _half()
        kept = ("--journal", str(files / f"{name}.jsonl"), "--minutes", str(minutes))
        command = _on_gpu("-m", f"tests.{name}", "--jobs", str(cores), *kept, *options)
        return [Job(name, "sweep", command, limit=60 * minutes + 90, cores=cores)]

    return jobs


def _sweep_numbers(outcomes: Sequence[Outcome], files: Path) -> dict[str, Any]:
    """Cases by where they ran, and what is wrong."""
    counts: Counter[str] = Counter()
    wrong = {}
    for outcome in outcomes:
        file = files / f"{outcome.job.part}.jsonl"
        for line in file.read_text().splitlines() if file.exists() else ():
            case, found, problems, _seconds = json.loads(line)
            counts["wrong" if problems else found.split(" & ")[0].split()[0]] += 1
            if problems:
                wrong[case] = " ".join(problems)[:600]
    return {"counts": dict(counts), "wrong": wrong}


def _differential(files: Path) -> list[Job]:
    cores = _half()
    # The other modes are over several devices of the CPU plugin.
    modes = ("whole", "divided", "dynamic", "automatic", "rounded", "segments", "exported")
    options = ("--seconds", "240", "--jobs", str(cores), "--shrink", "5", "--modes", *modes)
    report = ("--report", str(files / "differential.json"))
    command = _on_gpu("-m", "tests.differential", *options, *report)
    return [Job("differential", "programs", command, limit=480, cores=cores)]


def _differential_numbers(outcomes: Sequence[Outcome], files: Path) -> dict[str, Any]:
    """What the report of random programs holds."""
    file = files / "differential.json"
    return {"report": json.loads(file.read_text())} if file.exists() else {}


def _half() -> int:
    return max((os.cpu_count() or 1) // 2, 1)


# -- faults and benchmarks -------------------------------------------------------------------------


def _faults(files: Path) -> list[Job]:
    jobs = _half()
    options = ("--plugin", "cuda", "--jobs", str(jobs), "--minutes", "7")
    command = _python("-m", "tests.faults", *options)
    return [Job("faults", "matrix", command, limit=560, cores=jobs)]


def _faults_numbers(outcomes: Sequence[Outcome], files: Path) -> dict[str, Any]:
    """How many cases there were, and how many went wrong."""
    text = "".join(outcome.log.read_text(errors="replace") for outcome in outcomes)
    cases, wrong = re.findall(r"^(\d+) cases", text, re.M), re.findall(r"^(\d+) with", text, re.M)
    return {"cases": int(cases[-1]) if cases else None, "wrong": int(wrong[-1]) if wrong else None}


def _benchmarks(files: Path) -> list[Job]:
    if importlib.util.find_spec("benchmarks.gpu") is None:
        return []
    command = _python("-m", "benchmarks.gpu", "--json", str(files / "benchmarks.json"))
    return [Job("benchmarks", "gpu", command, limit=580, alone=True)]


def _benchmarks_numbers(outcomes: Sequence[Outcome], files: Path) -> dict[str, Any]:
    """What the benchmarks wrote."""
    file = files / "benchmarks.json"
    return {"results": json.loads(file.read_text())} if file.exists() else {}


def _tail(log: Path) -> str:
    return log.read_text(errors="replace")[-500:]


PARTS = {
    part.name: part
    for part in (
        Part("conformance", _conformance, _conformance_numbers),
        Part("tests", _tests, _tests_numbers),
        Part("faults", _faults, _faults_numbers),
        Part("opinfo", _sweep("opinfo", 6), _sweep_numbers),
        Part("models", _sweep("models", 6), _sweep_numbers),
        Part("differential", _differential, _differential_numbers),
        Part("benchmarks", _benchmarks, _benchmarks_numbers),
    )
}
"""By name, in the order in which they begin."""

USUAL = ("conformance", "tests", "faults", "benchmarks")
"""Those that fit into one run of ten minutes on sixteen cores."""
