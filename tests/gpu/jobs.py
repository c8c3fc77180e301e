"""Commands that run side by side, each with a limit, a log and a share of the processor's cores."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

_PATIENCE = 5.0
"""Seconds that a command which is past its limit gets to end by itself."""


@dataclass(frozen=True)
class Job:
    """A command.

    Attributes:
        part: what it belongs to.
        name: its own; with the part, the name of the log.
        command: program and arguments.
        limit: seconds that it may take.
        cores: how many it keeps busy; it waits until so many are free.
        alone: nothing else may run meanwhile: it measures times, or takes all memory.
    """

    part: str
    name: str
    command: Sequence[str]
    limit: float
    cores: int = 1
    alone: bool = False


@dataclass(frozen=True)
class Outcome:
    """How a job ended.

    Attributes:
        job: which.
        status: exit status of its command; None where the limit ended it, or it did not begin.
        seconds: that it took.
        log: what it wrote.
    """

    job: Job
    status: int | None
    seconds: float
    log: Path


@dataclass
class Cores:
    """The cores of the machine, of which jobs take some and give them back."""

    count: int
    _free: int = field(init=False)
    _changed: threading.Condition = field(init=False, default_factory=threading.Condition)

    def __post_init__(self) -> None:
        self._free = self.count

    def take(self, wanted: int) -> int:
        """Wait for so many cores, or all where there are fewer; how many were taken."""
        taken = min(wanted, self.count)
        with self._changed:
            self._changed.wait_for(lambda: self._free >= taken)
            self._free -= taken
        return taken

    def give(self, taken: int) -> None:
        """Give cores back."""
        with self._changed:
            self._free += taken
            self._changed.notify_all()


def run(
    jobs: Sequence[Job],
    logs: Path,
    environment: Mapping[str, str],
    *,
    deadline: float,
    tell: Callable[[Outcome], None],
) -> list[Outcome]:
    """Run jobs: those that bear company side by side, then each other one alone.

    Args:
        jobs: in the order in which they begin.
        logs: the folder of their logs.
        environment: theirs.
        deadline: of `time.monotonic`, when the last of them ends.
        tell: is called with each outcome, from any thread.
    """
    together = [job for job in jobs if not job.alone]
    cores = Cores(os.cpu_count() or 1)

    def one(job: Job) -> Outcome:
        taken = cores.take(job.cores)
        try:
            found = _run(job, logs, environment, deadline)
        finally:
            cores.give(taken)
        tell(found)
        return found

    with ThreadPoolExecutor(max_workers=max(len(together), 1)) as pool:
        found = list(pool.map(one, together))
    return [*found, *(one(job) for job in jobs if job.alone)]


def _run(job: Job, logs: Path, environment: Mapping[str, str], deadline: float) -> Outcome:
    log = logs / f"{job.part}.{job.name}.log"
    started = time.monotonic()
    limit = min(job.limit, deadline - started)
    if limit <= 0:
        log.write_text("no time was left for it\n")
        return Outcome(job, None, 0.0, log)
    with log.open("wb") as stream:
        process = subprocess.Popen(
            job.command,
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
            env=dict(environment),
            # Its own children end with it.
            start_new_session=True,
        )
        status: int | None
        try:
            status = process.wait(limit)
        except subprocess.TimeoutExpired:
            status = None
            _end(process)
    return Outcome(job, status, round(time.monotonic() - started, 1), log)


def _end(process: subprocess.Popen[bytes]) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
            process.wait(_PATIENCE)
        except ProcessLookupError:
            return
        except subprocess.TimeoutExpired:
            continue
