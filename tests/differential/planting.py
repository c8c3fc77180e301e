"""Looks for a planted fault."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tests.differential.faults import MODES
from tests.differential.generating import generate
from tests.differential.runner import RanProgram, Runner, Settings, Worker


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
        (failure, *_) = self.ran.answer.failures
        head = (
            f"{self.name:<24} program {self.ran.index} of {self.programs}, {self.seconds:.0f} s, "
            f"{failure.mode_name}: {failure.text[:100]}"
        )
        return "\n".join([head, *self.ran.tests[:1]])


def find(
    name: str,
    seconds: float = 60.0,
    seed: int = 0,
    wanted: Sequence[str] = (),
    ignored: Sequence[str] = (),
    shrinking: float = 0.0,
) -> Hit:
    """Run programs under a planted fault until one fails that does not fail without it.

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
            if ran.answer.failures and not other.one(worker, index).answer.failures:
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
            found = Runner(replace(plain, planted=name, shrinking=shrinking)).one(worker, index)
    finally:
        worker.stop()
    return Hit(name, count, total, found)
