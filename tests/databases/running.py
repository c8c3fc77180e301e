"""Runs a program in eager and in the way of its case, and finds what became of it."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import torch

from pjrt_bridge.torch_interop.resident.storages.transfer import COUNTS
from tests.databases.case import Case
from tests.databases.program import DatabaseProgram, Manner
from tests.opinfo.exact import is_as_near
from tests.opinfo.running import Backend, decomposed
from tests.sweeping.comparing import Numbers, Ran, differences
from tests.sweeping.placed import line_of, name_of, placement, take
from tests.sweeping.worker import Verdict


def run_case(case: Case, make: Callable[[Case], DatabaseProgram]) -> Verdict:
    """Run what a case names; the outcomes say how it went."""
    started = time.perf_counter()
    verdict = Verdict()
    program = make(case)
    _Run(case, verdict).whole(program)
    verdict.seconds = time.perf_counter() - started
    return verdict


def manner(way: str, backend: Backend = "pjrt") -> Manner:
    """How a way runs programs; `aot_eager` is the oracle of what torch itself does."""
    if way == "device":
        return Manner(device="pjrt")
    torch._dynamo.reset()
    compile = partial(torch.compile, backend=backend, dynamic=False)
    return Manner(compile, "pjrt" if way == "device-compiled" else "cpu")


class _Run:
    def __init__(self, case: Case, verdict: Verdict) -> None:
        self._case = case
        self._verdict = verdict

    def whole(self, program: DatabaseProgram) -> None:
        """All parts in one, which is fast; each alone where that does not simply work."""
        parts = program.parts()
        if not parts:
            self._alone(0, program)
            return
        try:
            expected = program.run(Manner())
            found, placed = self._found(program)
            trouble = differences(found, expected, program.tolerance)
        except Exception:
            trouble = ["-"]
        # A graph break in the one function keeps all of it from being compiled.
        if not trouble and placed != "no-graph":
            self._verdict.outcomes.add(placed)
            return
        for number, part in enumerate(parts):
            self._alone(number, part)

    def _found(self, program: DatabaseProgram) -> tuple[Ran, str]:
        take()
        before = COUNTS.to_host
        found = program.run(manner(self._case.way))
        if self._case.way == "device":
            return found, "device"
        del before
        return found, placement(take())

    def _alone(self, number: int, program: DatabaseProgram) -> None:
        try:
            expected = program.run(Manner())
        except Exception as error:
            self._refused(number, program, error)
            return
        try:
            found, placed = self._found(program)
        except Exception as error:
            other = self._oracle_error(program)
            if other is not None and name_of(other) == name_of(error):
                self._verdict.outcomes.add(f"untraceable {name_of(error)}")
            else:
                self._problem(number, f"{name_of(error)}: {line_of(error)}")
            return
        self._verdict.outcomes.add(placed + self._judge(number, program, expected, found))

    def _refused(self, number: int, program: DatabaseProgram, error: Exception) -> None:
        self._verdict.outcomes.add(f"eager {name_of(error)}")
        try:
            found, _ = self._found(program)
        except Exception as ours:
            if not (isinstance(ours, type(error)) or isinstance(error, type(ours))):
                other = self._oracle_error(program)
                if other is None or name_of(other) != name_of(ours):
                    self._problem(number, f"{name_of(ours)}: {line_of(ours)}; {name_of(error)}")
            return
        try:
            theirs = program.run(manner("compiled", "aot_eager"))
        except Exception:
            self._problem(number, f"nothing, eager {name_of(error)}: {line_of(error)}")
            return
        for trouble in differences(found, theirs, program.tolerance)[:3]:
            self._problem(number, f"aot_eager: {trouble}")

    def _oracle_error(self, program: DatabaseProgram) -> Exception | None:
        if self._case.way == "device":
            return None
        try:
            program.run(manner("compiled", "aot_eager"))
        except Exception as error:
            return error
        return None

    def _judge(self, number: int, program: DatabaseProgram, expected: Ran, found: Ran) -> str:
        trouble = differences(found, expected, program.tolerance)
        if not trouble:
            return ""
        others = [program.run(Manner(seed=seed)) for seed in range(1, 4)]
        if any(differences(other, expected, program.tolerance) for other in others):
            loose = differences(found, expected, program.tolerance, Numbers.MEAN)
            if loose:
                self._problem(number, loose[0])
            return " ~random"
        if self._case.way != "device":
            for flag, backend in (("~traced", "aot_eager"), ("~strides", decomposed)):
                if flag == "~strides" and not all("]: strides " in item for item in trouble):
                    continue
                try:
                    theirs = program.run(manner("compiled", backend))
                except Exception:
                    continue
                if not differences(found, theirs, program.tolerance):
                    return f" {flag}"
        if self._is_rounded(program, expected, found):
            return " ~rounded"
        self._problem(number, "; ".join(trouble[:3]))
        return ""

    def _is_rounded(self, program: DatabaseProgram, expected: Ran, found: Ran) -> bool:
        try:
            exact = program.run(Manner().widened())
        except Exception:
            return False
        return is_as_near(found, expected, exact, program.tolerance)

    def _problem(self, number: int, text: str) -> None:
        self._verdict.problems.append(f"part {number}: {text}")
