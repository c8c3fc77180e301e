"""`python -m tests.gpu [WHEELS] [--only PART,...]`: everything that needs a GPU, in one run.

First it is found out what the machine has (the part `facts`, which always runs). What is missing
comes from the folder WHEELS, if it has a wheel of it: there is no network. Then the parts run, as
many commands side by side as there are cores, and those that measure times alone. Into the folder
$OUT (else `--out`) go `gpu.json` (facts; for each part its status, numbers and seconds) and
`logs.tar.gz`. The exit status is 1 where a part failed.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tarfile
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.gpu import machine
from tests.gpu.jobs import Outcome, run
from tests.gpu.parts import PARTS, USUAL


def main(arguments: Sequence[str] | None = None) -> int:
    """The process's exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.gpu", description=__doc__)
    parser.add_argument("wheels", nargs="?", type=Path, help="a folder of wheels")
    parser.add_argument(
        "--only",
        default=",".join(USUAL),
        help=f"parts by commas, of facts, {', '.join(PARTS)} ({','.join(USUAL)})",
    )
    parser.add_argument("--minutes", type=float, default=9.0, help="for everything (9)")
    parser.add_argument("--out", type=Path, default=os.environ.get("OUT"), help="instead of $OUT")
    options = parser.parse_args(arguments)
    deadline = time.monotonic() + 60 * options.minutes
    if options.out is None:
        parser.error("no folder for the results: give --out, or set OUT")
    chosen = [name for name in options.only.split(",") if name not in ("", "facts")]
    if unknown := [name for name in chosen if name not in PARTS]:
        parser.error(f"there is no part {unknown[0]!r}; there are facts, {', '.join(PARTS)}")
    options.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="pjrt_bridge_gpu-") as folder:
        return _all(chosen, options.wheels, options.out, Path(folder), deadline)


def _all(chosen: list[str], wheels: Path | None, out: Path, folder: Path, deadline: float) -> int:
    logs, files, site = (folder / name for name in ("logs", "files", "site"))
    for one in (logs, files, site):
        one.mkdir()
    added = [] if wheels is None else machine.wheels_for(machine.missing(), wheels)
    if added:
        machine.add(added, site)
    children = machine.environment(site)
    report: dict[str, Any] = {"added": [one.name for one in added]}
    report["built"] = machine.build(children)
    report["machine"] = machine.facts(children)
    report["parts"] = {}
    print(json.dumps(report, indent=1), flush=True)
    jobs = [job for name in chosen for job in PARTS[name].jobs(files)]
    outcomes = run(jobs, logs, children, deadline=deadline, tell=_tell)
    for name in chosen:
        own = [one for one in outcomes if one.job.part == name]
        report["parts"][name] = {
            "status": _status(own),
            "seconds": {one.job.name: one.seconds for one in own},
            "not_ended": [one.job.name for one in own if one.status is None],
            **_numbers(name, own, files),
        }
    (out / "gpu.json").write_text(json.dumps(report, indent=1) + "\n")
    with tarfile.open(out / "logs.tar.gz", "w:gz") as archive:
        archive.add(logs, "logs")
    for name, part in report["parts"].items():
        print(f"{name}: {part['status']}", json.dumps(part.get("counts", {})))
    return 1 if any(part["status"] == "failed" for part in report["parts"].values()) else 0


def _tell(outcome: Outcome) -> None:
    ended = "past its limit" if outcome.status is None else f"status {outcome.status}"
    print(f"{outcome.job.part}.{outcome.job.name}: {ended}, {outcome.seconds:g} s", flush=True)


def _status(outcomes: Sequence[Outcome]) -> str:
    if not outcomes:
        return "nothing to run"
    return "passed" if all(one.status == 0 for one in outcomes) else "failed"


def _numbers(name: str, outcomes: Sequence[Outcome], files: Path) -> dict[str, Any]:
    try:
        return PARTS[name].numbers(outcomes, files)
    # A command that died may leave half a file, and the other parts count.
    except Exception as error:
        return {"unreadable": f"{type(error).__name__}: {error}"}


if __name__ == "__main__":
    sys.exit(main())
