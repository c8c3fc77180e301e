"""Looks for a planted fault."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tests.differential.faults import MODES
from tests.differential.generating import generate
from tests.differential.messages import Found
from tests.differential.runner import CRASH, HANG, RanProgram, Runner, Settings, Worker

_LOUD = ("exception", "other exception", "the fuzzer itself", CRASH, HANG)
"""Kinds of failures that anybody sees. The planted faults change results without a word."""


@dataclass(frozen=True)
class Hit:
    """What became of a search.

    Attributes:
        name: of the fault.
        programs: that were tried.
        seconds: that it took, less the start of the worker.
        ran: the program that shows it; None where none does.
    """

    name: str
    programs: int
    seconds: float
    ran: RanProgram | None

    def __str__(self) -> str:
        if self.ran is None:
            return f"{self.name:<24} NOT FOUND in {self.programs} programs, {self.seconds:.0f} s"
        (failure, *_) = silent(self.ran)
        head = (
            f"{self.name:<24} program {self.ran.index} of {self.programs}, {self.seconds:.0f} s, "
            f"{failure.mode_name}: {failure.text[:100]}"
        )
        shown = zip(self.ran.answer.failures, self.ran.tests, strict=True)
        return "\n".join([head, *(test for found, test in shown if found is failure)])


def silent(ran: RanProgram) -> list[Found]:
    """The failures of a program other than exceptions and processes that ended."""
    return [failure for failure in ran.answer.failures if failure.kind not in _LOUD]


def find(
    name: str,
    seconds: float = 60.0,
    seed: int = 0,
    wanted: Sequence[str] = (),
    ignored: Sequence[str] = (),
    shrinking: float = 0.0,
) -> Hit:
    """Run programs under a planted fault until one gives other results than without it.

    A program that raises under the fault does not show it: the fault is to be seen where it is
    silent.

    Args:
        name: of the fault.
        seconds: for how long; of the processor where that is less, since machines are shared.
        seed: of the programs.
        wanted: features, one of which a program has to have; empty: any program.
        ignored: kinds of differences that are left out.
        shrinking: seconds for it.
    """
    plain = Settings(seed, 1, MODES.get(name, ()), shrinking=0, ignored=tuple(ignored))
    runner, other = Runner(replace(plain, planted=name)), Runner(plain)
    worker = Worker()
    found = None
    count = 1
    try:
        # The first one includes the start of the process.
        ran = runner.one(worker, 0)
        started, before = time.monotonic(), worker.computed
        index = 0

        def taken() -> float:
            return min(time.monotonic() - started, worker.computed - before)

        while True:
            if silent(ran) and not other.one(worker, index).answer.failures:
                found = ran
                break
            if taken() > seconds:
                break
            index += 1
            while wanted and not generate(seed, index).has(wanted):
                index += 1
            ran = runner.one(worker, index)
            count += 1
        total = taken()
        if found is not None and shrinking:
            shrunk = Runner(replace(plain, planted=name, shrinking=shrinking)).one(worker, index)
            found = shrunk if silent(shrunk) else found
    finally:
        worker.stop()
    return Hit(name, count, total, found)
