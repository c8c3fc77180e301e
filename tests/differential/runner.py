"""Runs programs in worker processes, which may die, and shrinks those that fail."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from queue import Empty, SimpleQueue

from tests.differential.generating import generate
from tests.differential.ir import Program
from tests.differential.kernels import ENVIRONMENT
from tests.differential.messages import Answer, Found, Request, packed, plain, unpacked
from tests.differential.modes import Mode
from tests.differential.printing import as_test
from tests.differential.shrinking import shrink
from tests.sweeping.worker import Watchdog, processor_seconds

BLOCK = 200
"""Programs of one worker process; then it is replaced, since compilers' caches grow."""

LIMIT = 90.0
"""Processor seconds that a program may take."""

CRASH = "crash"
HANG = "hang"
EAGER = "eager mode"

_ENVIRONMENTS: tuple[dict[str, str], ...] = (
    {},
    {},
    {"PJRT_BRIDGE_DISPATCH": "python"},
    {"PJRT_BRIDGE_ATEN": "off"},
    {ENVIRONMENT: "everywhere"},
    {ENVIRONMENT: "everywhere"},
)
"""Those of workers, in turn: what is read when a process starts."""


def environment_of(index: int) -> dict[str, str]:
    """What the worker of a program has in its environment."""
    return _ENVIRONMENTS[index // BLOCK % len(_ENVIRONMENTS)]


class Worker:
    """A worker process, started when it is needed.

    Args:
        limit: processor seconds that an answer may take.

    Attributes:
        computed: processor seconds that answers took.
    """

    def __init__(self, limit: float = LIMIT) -> None:
        self.computed = 0.0
        self._limit = limit
        self._process: subprocess.Popen[str] | None = None
        self._environment: dict[str, str] = {}
        self._age = 0

    def ask(self, request: Request, environment: dict[str, str]) -> Answer:
        """What becomes of a program; a process that dies is a failure of it."""
        if self._age >= BLOCK or environment != self._environment:
            self.stop()
        process = self._started(environment)
        self._age += 1
        assert process.stdin
        assert process.stdout
        watchdog = Watchdog(process, self._limit)
        watchdog.start()
        before = processor_seconds(process.pid)
        try:
            process.stdin.write(json.dumps(plain(request)) + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
        except BrokenPipeError:
            line = ""
        finally:
            watchdog.cancel()
        if line:
            self.computed += processor_seconds(process.pid) - before
            return Answer.of(json.loads(line))
        status = self.stop()
        kind, text = CRASH, f"the process ended with status {status}"
        if watchdog.late:
            kind, text = HANG, f"no answer within {self._limit:.0f} s"
        mode = unpacked(request.given)[1] if request.given else Mode()
        return Answer([Found(packed(mode), mode.name, "wrong", kind, text)])

    def _started(self, environment: dict[str, str]) -> subprocess.Popen[str]:
        if self._process is None:
            self._environment = environment
            self._age = 0
            self._process = subprocess.Popen(
                (sys.executable, "-m", "tests.differential.worker"),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                cwd=Path(__file__).parent.parent.parent,
                env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
            )
        return self._process

    def stop(self) -> int | None:
        """End it; its exit status."""
        process, self._process = self._process, None
        if process is None:
            return None
        try:
            process.communicate(timeout=30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
        return process.returncode


@dataclass
class RanProgram:
    """A program that was run.

    Attributes:
        index: of it.
        answer: what became of it.
        tests: for each failure, the shrunk program as a test; empty where it was not shrunk.
    """

    index: int
    answer: Answer
    tests: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Settings:
    """What a run does.

    Attributes:
        seed: of the run.
        count: modes of a program.
        modes: names of modes to choose from.
        planted: name of a planted fault.
        shrinking: seconds for each failure.
        alike: how many failures of one kind and mode are shrunk.
        ignored: kinds of differences that are left out.
        wanted: features, one of which a program has to have; empty: any program runs.
    """

    seed: int = 0
    count: int = 2
    modes: tuple[str, ...] = ()
    planted: str = ""
    shrinking: float = 20.0
    alike: int = 2
    ignored: tuple[str, ...] = ()
    wanted: tuple[str, ...] = ()


class Runner:
    """Runs programs.

    Args:
        settings: what to do.
        jobs: worker processes at once.
    """

    def __init__(self, settings: Settings, jobs: int = 1) -> None:
        self._settings = settings
        self._jobs = jobs
        self._shrunk: dict[tuple[str, ...], int] = {}
        self._stopped = False

    def run(self, first: int, going: Callable[[int], bool]) -> Iterator[RanProgram]:
        """Programs from an index on, as they end, for as long as `going` says of their number."""
        found: SimpleQueue[RanProgram | None] = SimpleQueue()
        blocks: SimpleQueue[int] = SimpleQueue()
        begun = first - first % BLOCK
        for number in range(10000):
            blocks.put(begun + number * BLOCK)

        def work() -> None:
            worker = Worker()
            try:
                while not self._stopped:
                    start = blocks.get()
                    for index in range(max(start, first), start + BLOCK):
                        if self._stopped or not going(index - first):
                            return
                        if not self._is_wanted(index):
                            continue
                        found.put(self.one(worker, index))
            finally:
                worker.stop()
                found.put(None)

        with ThreadPoolExecutor(self._jobs) as pool:
            futures = [pool.submit(work) for _ in range(self._jobs)]
            left = self._jobs
            try:
                while left:
                    try:
                        item = found.get(timeout=1)
                    except Empty:
                        continue
                    if item is None:
                        left -= 1
                    else:
                        yield item
            finally:
                self._stopped = True
            for future in futures:
                future.result()

    def _is_wanted(self, index: int) -> bool:
        wanted = self._settings.wanted
        return not wanted or generate(self._settings.seed, index).has(wanted)

    def one(self, worker: Worker, index: int) -> RanProgram:
        """Run one program, and shrink it where it fails."""
        settings = self._settings
        environment = environment_of(index)
        request = Request(
            settings.seed,
            index,
            settings.count,
            settings.modes,
            planted=settings.planted,
            ignored=settings.ignored,
        )
        answer = worker.ask(request, environment)
        if any(failure.kind == CRASH for failure in answer.failures):
            # Without a mode it runs in eager mode alone.
            alone = worker.ask(replace(request, count=0), environment)
            if any(failure.kind == CRASH for failure in alone.failures):
                answer = Answer(torches=[f"{EAGER}: {CRASH}: {alone.failures[0].text}"])
        ran = RanProgram(index, answer)
        for failure in answer.failures:
            ran.tests.append(self._test(worker, index, failure, environment))
        return ran

    def _test(self, worker: Worker, index: int, failure: Found, environment: dict[str, str]) -> str:
        settings = self._settings
        program, mode = generate(settings.seed, index), unpacked(failure.mode)
        key = (failure.kind, failure.mode_name)
        if failure.kind in ("exception", "other exception"):
            key = (failure.kind, failure.text.split(": ", 3)[-1][:60])
        count = self._shrunk[key] = self._shrunk.get(key, 0) + 1
        if count > settings.alike or settings.shrinking <= 0:
            return as_test(program, mode)
        wanted = _kind(failure)

        def fails(candidate: Program, way: Mode) -> bool:
            given = packed((candidate, way))
            found = worker.ask(
                Request(given=given, planted=settings.planted, ignored=settings.ignored),
                environment,
            )
            return any(_kind(item) == wanted for item in found.failures)

        small, way = shrink(program, mode, fails, settings.shrinking)
        return as_test(small, way)


def _kind(failure: Found) -> tuple[str, ...]:
    if failure.kind == "exception":
        # Which exception it is, without what numbers it names.
        name = failure.text.split(": exception: ")[-1].split(":")[0]
        return (failure.kind, name)
    return (failure.kind,)
