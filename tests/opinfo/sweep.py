"""Runs cases in a process of their own, which may die: the case is named and the rest goes on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.opinfo.case import Case

LIMIT = 120.0
"""Seconds that a case may take."""

LIFE = 500
"""Cases after which a worker is replaced, so that what they leave behind does not add up."""

WORKER = (sys.executable, "-m", "tests.opinfo.worker")


@dataclass(frozen=True)
class Result:
    """What became of a case.

    Attributes:
        case: which.
        outcome: how its samples went, as the file of expected outcomes has it.
        problems: wrong results, exceptions that are not torch's, a dead process.
        seconds: it took.
    """

    case: Case
    outcome: str
    problems: tuple[str, ...]
    seconds: float


class Sweep:
    """A worker process, started when it is needed.

    Args:
        command: starts a worker.
        limit: seconds that a case may take.
    """

    def __init__(self, command: Sequence[str] = WORKER, limit: float = LIMIT) -> None:
        self._command = command
        self._limit = limit
        self._process: subprocess.Popen[str] | None = None
        self._cases: list[Case] = []
        self._age = 0

    def __enter__(self) -> Sweep:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    def cases(self) -> list[Case]:
        """Every case that the database has."""
        self._started()
        return self._cases

    def run(self, case: Case) -> Result:
        """Run one case."""
        if self._age >= LIFE:
            self._stop()
        process = self._started()
        self._age += 1
        assert process.stdin
        watchdog = threading.Timer(self._limit, process.kill)
        watchdog.start()
        try:
            process.stdin.write(json.dumps(vars(case)) + "\n")
            process.stdin.flush()
            answer = self._answer(process)
        except BrokenPipeError:
            answer = ""
        finally:
            watchdog.cancel()
        if not answer:
            status = self._stop()
            return Result(case, "", (f"the process ended with status {status}",), self._limit)
        found = json.loads(answer)
        outcome = " & ".join(found["outcomes"])
        return Result(case, outcome, tuple(found["problems"]), found["seconds"])

    def _started(self) -> subprocess.Popen[str]:
        if self._process is None:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                cwd=Path(__file__).parent.parent.parent,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
            )
            self._age = 0
            listed = self._answer(self._process)
            if not listed:
                status = self._stop()
                raise RuntimeError(
                    f"{' '.join(self._command)} ended with status {status} before any case; "
                    "run it by hand to see why"
                )
            self._cases = [Case(**item) for item in json.loads(listed)]
        return self._process

    def _answer(self, process: subprocess.Popen[str]) -> str:
        assert process.stdout
        try:
            return process.stdout.readline()
        except BaseException:
            # Interrupted, its late answer must not be taken for that of the next case.
            process.kill()
            self._stop()
            raise

    def _stop(self) -> int | None:
        process, self._process = self._process, None
        if process is None:
            return None
        # Closed input ends a worker that lives; one that died on the way is only collected.
        process.communicate(timeout=60)
        return process.returncode
