"""Runs of the fuzzer that are counted across sessions: a line of JSON for each in `record.jsonl`.

`python -m tests.differential --seed S --record` appends one, with a seed that has none there yet,
and `--total` sums them up: how many programs ran, and how many since the last difference was found.
A line is kept whatever its run found. Grammars change: a line counts the programs of its time.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tests.differential.report import Report

KEPT = Path(__file__).parent / "record.jsonl"


@dataclass(frozen=True)
class Recorded:
    """One run.

    Attributes:
        seed: of the programs.
        first: index of the first program.
        programs: that ran.
        runs: of programs in a mode.
        modes: runs by mode.
        found: differences that are the backend's own, by severity and kind.
        invalid: programs that the fuzzer could not make or run.
    """

    seed: int
    first: int
    programs: int
    runs: int
    modes: dict[str, int] = field(default_factory=dict)
    found: dict[str, int] = field(default_factory=dict)
    invalid: int = 0

    @staticmethod
    def of(report: Report, first: int) -> Recorded:
        """What a run did whose first program had this index."""
        return Recorded(
            report.seed,
            first,
            report.programs,
            report.runs,
            dict(sorted(report.modes.items())),
            dict(sorted(report.classes.items())),
            len(report.invalid),
        )

    def append(self, path: Path = KEPT) -> None:
        """Write it behind those of a file."""
        with path.open("a") as file:
            file.write(json.dumps(asdict(self)) + "\n")


def read(path: Path = KEPT) -> list[Recorded]:
    """All runs of a file, oldest first; none where there is no file."""
    if not path.exists():
        return []
    return [Recorded(**json.loads(line)) for line in path.read_text().splitlines()]


def total(runs: Sequence[Recorded] | None = None) -> str:
    """What runs did together, by default those that are kept.

    A run that found something does not count among the programs since the last find: which of its
    programs came after it is not recorded.
    """
    runs = read() if runs is None else runs
    last: dict[str, int] = {}
    modes: Counter[str] = Counter()
    found: Counter[str] = Counter()
    for number, run in enumerate(runs):
        modes.update(run.modes)
        found.update(run.found)
        last |= dict.fromkeys(run.found, number)
    since = max(last.values(), default=-1) + 1
    lines = [
        f"{len(runs)} runs, {_programs(runs)} programs, {modes.total()} compiled runs",
        f"programs since the last difference: {_programs(runs[since:])}",
        *(
            f"{kind}: {count}, none in the last {_programs(runs[last[kind] + 1 :])} programs"
            for kind, count in found.most_common()
        ),
        f"modes: {', '.join(f'{name} {count}' for name, count in modes.most_common())}",
    ]
    return "\n".join(lines)


def _programs(runs: Sequence[Recorded]) -> int:
    return sum(run.programs for run in runs)
