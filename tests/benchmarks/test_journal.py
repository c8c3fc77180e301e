from pathlib import Path

import pytest

from benchmarks.case import Asked
from benchmarks.journal import Journal
from benchmarks.results import Outcome, Result

FOUND = Result(
    "case",
    "models",
    "a call",
    "s",
    {"pjrt": Outcome((1.0, 2.0), peak=5), "jax": Outcome(status="absent", reason="not named")},
    (Asked("pjrt", 1.0, ("eager",)),),
)


def test_the_next_run_finds_what_one_has_measured(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    first = Journal(path)
    assert first.find("case") is None
    first.add(FOUND)
    assert first.find("case") == FOUND
    assert Journal(path).find("case") == FOUND
    assert Journal(path).find("another") is None


def test_a_file_of_something_else_is_refused_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    Journal(path).add(FOUND)
    path.write_text(path.read_text() + "{}\n")
    with pytest.raises(ValueError, match=r"line 2 of .*journal.jsonl is no result"):
        Journal(path)


def test_without_a_file_results_are_kept_for_the_run() -> None:
    journal = Journal(None)
    journal.add(FOUND)
    assert journal.find("case") == FOUND
