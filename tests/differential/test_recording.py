from itertools import pairwise
from pathlib import Path

from tests.differential.messages import Answer, Found
from tests.differential.recording import Recorded, read, total
from tests.differential.report import Report
from tests.differential.runner import RanProgram


def _report(seed: int, *answers: Answer) -> Report:
    report = Report(seed)
    for index, answer in enumerate(answers):
        report.add(RanProgram(index, answer, [""] * len(answer.failures)))
    return report


def test_a_run_is_recorded_and_read_again(tmp_path: Path) -> None:
    found = Found("", "whole", "wrong", "value", "call 0: result: value: 1, not 2")
    report = _report(
        7, Answer(modes=["whole"]), Answer(modes=["whole"], failures=[found]), Answer(invalid="no")
    )
    path = tmp_path / "record.jsonl"
    assert read(path) == []
    Recorded.of(report, 100).append(path)
    Recorded.of(_report(8, Answer(modes=["dynamic"])), 0).append(path)
    assert read(path) == [
        Recorded(7, 100, 3, 2, {"whole": 2}, {"wrong: value": 1}, 1),
        Recorded(8, 0, 1, 1, {"dynamic": 1}),
    ]


def test_the_total_counts_programs_since_the_last_find() -> None:
    runs = [
        Recorded(1, 0, 100, 100, {"whole": 100}, {"wrong: alias": 1}),
        Recorded(2, 0, 200, 200, {"whole": 200}),
        Recorded(3, 0, 400, 400, {"dynamic": 400}, {"wrong: value": 2}),
        Recorded(4, 0, 800, 800, {"whole": 800}),
    ]
    lines = total(runs).splitlines()
    assert lines[0] == "4 runs, 1500 programs, 1500 compiled runs"
    assert lines[1] == "programs since the last difference: 800"
    assert "wrong: value: 2, none in the last 800 programs" in lines
    assert "wrong: alias: 1, none in the last 1400 programs" in lines
    assert total([]).startswith("0 runs, 0 programs")


def test_the_kept_record_names_each_program_once() -> None:
    runs = sorted(read(), key=lambda run: (run.seed, run.first))
    for one, other in pairwise(runs):
        assert one.seed != other.seed or one.first + one.programs <= other.first
