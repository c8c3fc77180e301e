"""The script for a machine with a GPU, where there is none: what it finds out, and what it runs."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

from pjrt_bridge_conformance import suite
from pjrt_bridge_conformance.suite import selected
from tests.gpu import machine
from tests.gpu.jobs import Job, Outcome, run
from tests.gpu.parts import CONFORMANCE, PARTS

SCRIPT = Path(__file__).with_name("run_all.sh")


def test_the_facts_of_this_machine(tmp_path: Path) -> None:
    environment = {**machine.environment(tmp_path), "OUT": str(tmp_path), "PYTHON": sys.executable}
    command = [str(SCRIPT), "--only", "facts"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert sorted(one.name for one in tmp_path.iterdir()) == ["gpu.json", "logs.tar.gz"]
    found = json.loads((tmp_path / "gpu.json").read_text())
    facts = found["machine"]
    assert facts["python"] == ".".join(map(str, sys.version_info[:3]))
    assert facts["missing"] == machine.missing()
    assert "cuda" in facts["plugins"]
    assert isinstance(facts["dispatcher"], bool)
    assert facts["versions"]["numpy"]
    assert found["parts"] == {}


def test_what_cannot_be_run(tmp_path: Path) -> None:
    command = [str(SCRIPT), "--only", "nonsense", "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "there is no part 'nonsense'; there are facts, conformance" in done.stderr


def test_every_check_of_the_suite_runs_once() -> None:
    checks = suite()
    parts = [{one.name for one in selected(checks, patterns)} for patterns in CONFORMANCE]
    assert set().union(*parts) == set(checks)
    always = set.intersection(*parts)
    for number, part in enumerate(parts):
        for other in parts[:number]:
            assert part & other <= always


def test_every_part_has_commands(tmp_path: Path) -> None:
    for name, part in PARTS.items():
        jobs = part.jobs(tmp_path)
        assert all(job.part == name and sys.executable in job.command for job in jobs)
        assert len({job.name for job in jobs}) == len(jobs)
        assert part.numbers([], tmp_path) is not None


def test_commands_that_end_in_every_way(tmp_path: Path) -> None:
    def python(name: str, source: str, limit: float = 60.0, *, alone: bool = False) -> Job:
        return Job("part", name, (sys.executable, "-c", source), limit, alone=alone)

    jobs = [
        python("good", "print('well')", alone=True),
        python("bad", "raise SystemExit(3)"),
        python("endless", "import time; time.sleep(60)", 0.5),
    ]
    told: list[Outcome] = []
    found = run(jobs, tmp_path, {}, deadline=time.monotonic() + 60, tell=told.append)
    assert {one.job.name: one.status for one in found} == {"bad": 3, "endless": None, "good": 0}
    assert found[-1].job.alone
    assert (tmp_path / "part.good.log").read_text() == "well\n"
    assert len(told) == 3
    (late,) = run(jobs[:1], tmp_path, {}, deadline=time.monotonic() - 1, tell=told.append)
    assert late.status is None
    assert late.log.read_text() == "no time was left for it\n"


def test_wheels_of_what_is_missing(tmp_path: Path) -> None:
    for name in ("typing_inspect-1-py3-none-any.whl", "rich-15.0.0-py3-none-any.whl"):
        (tmp_path / name).touch()
    found = machine.wheels_for(["typing-inspect", "numpy"], tmp_path)
    assert [one.name for one in found] == ["typing_inspect-1-py3-none-any.whl"]
