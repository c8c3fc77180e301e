"""A sweep that was interrupted goes on where it was."""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path

from tests.opinfo.case import Case
from tests.opinfo.sweep import Sweep
from tests.sweeping.command import Sweeping, main
from tests.sweeping.journal import Journal
from tests.sweeping.worker import Result

ADD, SUB = (Case(name, "float32", "forward") for name in ("add", "sub"))


def test_results_are_known_again(tmp_path: Path) -> None:
    file = tmp_path / "journal"
    first = Journal(file, [ADD, SUB])
    assert first.known == {}
    right = Result(ADD, "device", (), 0.5)
    wrong = Result(SUB, "", ("sample 0: 1, not 2", "sample 1: 1, not 2"), 1.5)
    for result in (right, wrong):
        first.add(result)
    assert Journal(file, [ADD, SUB]).known == {ADD: right, SUB: wrong}
    assert Journal(file, [SUB]).known == {SUB: wrong}


def test_the_last_result_of_a_case_counts(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal", [ADD])
    for outcome in ("host aten.add.Tensor", "device"):
        journal.add(Result(ADD, outcome, (), 0.5))
    assert Journal(tmp_path / "journal", [ADD]).known[ADD].outcome == "device"


def test_without_a_file_nothing_is_kept() -> None:
    journal = Journal(None, [ADD])
    journal.add(Result(ADD, "device", (), 0.5))
    assert journal.known == {}


ANSWERING = """
import json, sys
names = [dict(entry=f"e{at}", dtype="float32", direction="forward") for at in range(40)]
print(json.dumps(names), flush=True)
for line in sys.stdin:
    outcome = "wrong" if json.loads(line)["entry"] == "e1" else "device"
    problems = ["not equal"] if outcome == "wrong" else []
    print(json.dumps(dict(outcomes=[outcome], problems=problems, seconds=0.1)), flush=True)
"""


def swept(folder: Path, *arguments: str) -> list[str]:
    """The names of the cases that ran."""
    before = len(_lines(folder))
    sweeping = Sweeping(
        program="test",
        about=None,
        start=partial(Sweep, [sys.executable, "-c", ANSWERING]),
        file=folder / "expected",
        load=dict,
        dump=lambda outcomes: "".join(sorted(f"{case}\n" for case in outcomes)),
        table=lambda outcomes: "",
    )
    main(sweeping, ["--jobs", "1", "--journal", str(folder / "journal"), *arguments])
    return [json.loads(line)[0].split()[0] for line in _lines(folder)[before:]]


def _lines(folder: Path) -> list[str]:
    file = folder / "journal"
    return file.read_text().splitlines() if file.exists() else []


def test_slices_by_time_and_by_part_make_a_whole(tmp_path: Path) -> None:
    first = swept(tmp_path, "--minutes", "1e-9")
    assert len(first) == 1
    parts = [swept(tmp_path, "--part", f"{at}/3") for at in range(3)]
    ran = [name for part in parts for name in part]
    # What was wrong runs again, all else once.
    assert sorted({*ran, *first}) == sorted(f"e{at}" for at in range(40))
    assert len(ran) == len(set(ran))
    assert swept(tmp_path, "--write") == ["e1"]
    written = (tmp_path / "expected").read_text().splitlines()
    assert len(written) == 39
