"""Runs cases in a process of their own, which may die: the case is named and the rest goes on.

A worker process first writes the list of all its cases as a line of JSON, then answers each line
that names a case with one that says what became of it.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Generic, TextIO, TypeVar

C = TypeVar("C")
"""The name of a case: a dataclass of strings."""

ENDING = 60.0
"""Seconds that a worker may take to end when its input has."""


PATIENCE = 4
"""How many times its limit a case may take by the clock, on a machine that does other things."""


@dataclass
class Verdict:
    """What became of a case, in the worker.

    Attributes:
        outcomes: one for each way that its parts went.
        problems: wrong results and exceptions that are not torch's.
        seconds: it took.
    """

    outcomes: set[str] = field(default_factory=set)
    problems: list[str] = field(default_factory=list)
    seconds: float = 0.0


@dataclass(frozen=True)
class Result(Generic[C]):
    """What became of a case.

    Attributes:
        case: which.
        outcome: how it went, as the file of expected outcomes has it.
        problems: wrong results, exceptions that are not torch's, a dead process.
        seconds: it took.
    """

    case: C
    outcome: str
    problems: tuple[str, ...]
    seconds: float


class Worker(Generic[C]):
    """A worker process, started when it is needed.

    Args:
        kind: makes a case of its fields.
        command: starts a worker.
        limit: processor seconds that a case may take.
        life: cases after which a worker is replaced, so that what they leave does not add up.
    """

    def __init__(
        self, kind: Callable[..., C], command: Sequence[str], *, limit: float, life: int
    ) -> None:
        self._kind = kind
        self._command = command
        self._limit = limit
        self._life = life
        self._process: subprocess.Popen[str] | None = None
        self._cases: list[C] = []
        self._age = 0

    def __enter__(self) -> Worker[C]:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    def cases(self) -> list[C]:
        """Every case that there is."""
        self._started()
        return self._cases

    def run(self, case: C) -> Result[C]:
        """Run one case."""
        if self._age >= self._life:
            self._stop()
        process = self._started()
        self._age += 1
        assert process.stdin
        watchdog = Watchdog(process, self._limit)
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
            ended = f"the process ended with status {status}"
            problem = f"no answer within {self._limit:g} s" if watchdog.late else ended
            return Result(case, "", (problem,), self._limit)
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
                env={"TF_CPP_MIN_LOG_LEVEL": "3", **os.environ, "OMP_NUM_THREADS": "1"},
            )
            self._age = 0
            listed = self._answer(self._process)
            if not listed:
                status = self._stop()
                raise RuntimeError(
                    f"{' '.join(self._command)} ended with status {status} before any case; "
                    "run it by hand to see why"
                )
            self._cases = [self._kind(**item) for item in json.loads(listed)]
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
        try:
            process.communicate(timeout=ENDING)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
        return process.returncode


class Watchdog(threading.Thread):
    """Kills a process when it has computed for too long, or does not come to it.

    Args:
        process: what is watched.
        limit: processor seconds; by the clock it may be `PATIENCE` times as long, because machines
            are shared.

    Attributes:
        late: it was killed.
    """

    def __init__(self, process: subprocess.Popen[str], limit: float) -> None:
        super().__init__(daemon=True)
        self.late = False
        self._process = process
        self._limit = limit
        self._over = threading.Event()

    def run(self) -> None:
        """Watch until `cancel`."""
        begun, before = time.monotonic(), processor_seconds(self._process.pid)
        wait = self._limit
        while not self._over.wait(wait):
            waited = time.monotonic() - begun
            computed = processor_seconds(self._process.pid) - before
            if not computed < self._limit or waited >= PATIENCE * self._limit:
                self.late = True
                self._process.kill()
                return
            wait = min(self._limit - computed, PATIENCE * self._limit - waited)

    def cancel(self) -> None:
        """Stop watching."""
        self._over.set()


def processor_seconds(pid: int) -> float:
    """What a process has computed, without its children; endless where nobody tells."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return math.inf
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def run(start: Callable[[], Worker[C]], cases: Sequence[C], jobs: int) -> Iterator[Result[C]]:
    """What became of each case, as it comes, with so many workers at once."""
    idle: SimpleQueue[Worker[C]] = SimpleQueue()

    def one(case: C) -> Result[C]:
        worker = idle.get()
        try:
            return worker.run(case)
        finally:
            idle.put(worker)

    with ExitStack() as stack:
        for _ in range(jobs):
            idle.put(stack.enter_context(start()))
        pool = stack.enter_context(ThreadPoolExecutor(jobs))
        stack.callback(pool.shutdown, cancel_futures=True)
        for future in as_completed([pool.submit(one, case) for case in cases]):
            yield future.result()


def serve(
    stream: TextIO, kind: Callable[..., C], cases: Iterable[Any], judge: Callable[[C], Verdict]
) -> None:
    """Be a worker until standard input ends.

    Args:
        stream: where to answer.
        kind: makes a case of its fields.
        cases: all there are.
        judge: runs one; what it raises is a problem.
    """
    _write(stream, [asdict(case) for case in cases])
    for line in sys.stdin:
        try:
            verdict = judge(kind(**json.loads(line)))
        except Exception:
            last = traceback.format_exc().splitlines()[-6:]
            verdict = Verdict(problems=[" ".join(last)])
        _write(stream, {**asdict(verdict), "outcomes": sorted(verdict.outcomes)})


def _write(stream: TextIO, value: object) -> None:
    stream.write(json.dumps(value) + "\n")
    stream.flush()
