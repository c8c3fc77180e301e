"""Results of a sweep in a file, so that one that was interrupted goes on where it was."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Generic

from tests.sweeping.worker import C, Result


class Journal(Generic[C]):
    """One line of JSON for each result.

    Args:
        file: appended to; None: nothing is kept.
        cases: all there are; lines of others are passed over.

    Attributes:
        known: the results that the file had, by case; of several the last.
    """

    def __init__(self, file: Path | None, cases: Iterable[C]) -> None:
        self._file = file
        self.known: dict[C, Result[C]] = {}
        if file is None or not file.exists():
            return
        by_name = {str(case): case for case in cases}
        for line in file.read_text().splitlines():
            name, outcome, problems, seconds = json.loads(line)
            if name in by_name:
                case = by_name[name]
                self.known[case] = Result(case, outcome, tuple(problems), seconds)

    def add(self, result: Result[C]) -> None:
        """Write a result, at once."""
        if self._file is None:
            return
        row = [str(result.case), result.outcome, result.problems, result.seconds]
        with self._file.open("a") as stream:
            stream.write(json.dumps(row) + "\n")
