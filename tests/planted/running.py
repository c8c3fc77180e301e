"""Tests run over planted faults, in processes that may die."""

from __future__ import annotations

import queue
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.planted import failures
from tests.planted.fault import Fault
from tests.planted.tree import Tree

LIMIT = 900
"""Seconds that the tests of one fault may take."""

_ENDED = (0, 1)
"""Exit statuses of a pytest that has run all that it was to run."""


@dataclass(frozen=True)
class FaultOutcome:
    """What became of a planted fault.

    Attributes:
        fault: that was planted.
        test: the first that failed; empty where none did.
        death: how the process of the tests ended where it did not come to their end.
        objection: why nothing can be said; empty where something can.
        seconds: that the tests took.
    """

    fault: Fault
    test: str = ""
    death: str = ""
    objection: str = ""
    seconds: float = 0.0

    @property
    def found(self) -> bool:
        """Whether the tests found the fault."""
        return bool(self.test or self.death) and not self.objection


@dataclass(frozen=True)
class Ended:
    """How a run of pytest ended.

    Attributes:
        status: exit status; None: it took too long.
        failed: the tests that failed, in order.
        text: what it wrote.
    """

    status: int | None
    failed: tuple[str, ...]
    text: str


@contextmanager
def trees(count: int) -> Iterator[list[Tree]]:
    """Copies of the tree, during a `with` block."""
    with TemporaryDirectory(prefix="pjrt_bridge-planted-") as folder:
        yield [Tree(Path(folder, str(number))) for number in range(count)]


def try_all(faults: Sequence[Fault], places: Sequence[Tree]) -> Iterator[FaultOutcome]:
    """Plant each fault into one of the copies, and run its tests.

    Yields:
        Each result as it comes.
    """
    free: queue.Queue[Tree] = queue.Queue()
    for place in places:
        free.put(place)

    def one(fault: Fault) -> FaultOutcome:
        tree = free.get()
        try:
            return try_one(tree, fault)
        finally:
            free.put(tree)

    with ThreadPoolExecutor(len(places)) as pool:
        waiting = [pool.submit(one, fault) for fault in faults]
        try:
            for done in as_completed(waiting):
                yield done.result()
        finally:
            pool.shutdown(cancel_futures=True)


def try_one(tree: Tree, fault: Fault) -> FaultOutcome:
    """Plant a fault and run its tests; what cannot be imported finds nothing."""
    started = time.perf_counter()
    try:
        with tree.planted(fault):
            ended = run_tests(tree, fault.tests, "-x")
    except (ValueError, subprocess.CalledProcessError) as error:
        return FaultOutcome(fault, objection=str(error))
    seconds = time.perf_counter() - started
    if ended.status is None:
        # Tests have a limit of their own: what takes so long is the machine, and no fault.
        return FaultOutcome(fault, objection=f"the tests did not end in {LIMIT} s", seconds=seconds)
    if ended.status < 0:
        died = f"the process died of {signal.Signals(-ended.status).name}"
        return FaultOutcome(fault, death=died, seconds=seconds)
    if ended.status == 0:
        return FaultOutcome(fault, seconds=seconds)
    if not ended.failed:
        text = f"pytest ended with status {ended.status}: {ended.text[-2000:]}"
        return FaultOutcome(fault, objection=text, seconds=seconds)
    return FaultOutcome(fault, ended.failed[0], seconds=seconds)


def failing_anyway(tree: Tree, tests: Collection[str]) -> set[str]:
    """Which tests fail in a copy without a fault; what is not there fails, too."""
    wanted = sorted(tests)
    if not wanted:
        return set()
    ended = run_tests(tree, wanted)
    if ended.status in _ENDED:
        return {test for test in ended.failed if test in tests}
    if len(wanted) == 1:
        return set(wanted)
    # One of them is not there, or it ends the process.
    return {test for one in wanted for test in failing_anyway(tree, [one])}


def run_tests(tree: Tree, tests: Sequence[str], *options: str) -> Ended:
    """Run tests of a copy."""
    command = [
        *(sys.executable, "-m", "pytest", "-q", "-m", "not slow", "--tb=short", *options),
        *("-p", "no:cacheprovider", "-p", "no:xdist", "-p", failures.__name__, *tests),
    ]
    with TemporaryDirectory() as folder:
        file = Path(folder, "failed")
        try:
            done = subprocess.run(
                command,
                cwd=tree.folder,
                env={**tree.environment(), failures.FILE: str(file)},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                timeout=LIMIT,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return Ended(None, (), "")
        failed = file.read_text().splitlines() if file.exists() else ()
        return Ended(done.returncode, tuple(failed), done.stdout)
