"""Results of a run that was interrupted, or that goes on another day: one JSON object a line."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.results import Result, read_result, result_as_dict


class Journal:
    """What earlier runs have measured.

    Args:
        path: of the file, which need not exist; None: nothing is kept.

    Raises:
        ValueError: the file holds something else.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._known: dict[str, Result] = {}
        lines = path.read_text().splitlines() if path is not None and path.exists() else []
        for number, line in enumerate(lines, 1):
            try:
                result = read_result(json.loads(line))
            except (KeyError, TypeError, AttributeError, ValueError) as error:
                raise ValueError(
                    f"line {number} of {path} is no result of the benchmarks: {error!r}"
                ) from error
            self._known[result.case] = result

    def find(self, case: str) -> Result | None:
        """The result of a case that was measured before."""
        return self._known.get(case)

    def add(self, result: Result) -> None:
        """Keep a result."""
        self._known[result.case] = result
        if self._path is not None:
            with self._path.open("a") as file:
                file.write(json.dumps(result_as_dict(result)) + "\n")
