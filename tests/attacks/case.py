"""One attack: what a worker is given, and what it says of it."""

from __future__ import annotations

import time
import warnings
from dataclasses import dataclass

from pjrt_bridge.errors import PjrtBridgeError
from tests.attacks import arguments, commands, compilers, files, programs, public  # noqa: F401
from tests.attacks.registry import SUBJECTS
from tests.sweeping.worker import Verdict

SLOW = 60.0
"""Seconds that an attack may take on a busy machine."""


@dataclass(frozen=True)
class Case:
    """Attack a subject in one of its ways."""

    subject: str
    number: int

    def __str__(self) -> str:
        return f"{self.subject} {self.number}"


def cases(part: int = 1) -> list[Case]:
    """All attacks, or of each subject one in so many."""
    return [
        Case(name, number)
        for name, subject in SUBJECTS.items()
        for number in range(0, subject.count, part)
    ]


def judge(case: Case) -> Verdict:
    """Run an attack in this process."""
    verdict = Verdict()
    started = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            SUBJECTS[case.subject].attack(case.number)
            verdict.outcomes.add("accepted")
        except PjrtBridgeError as error:
            verdict.outcomes.add("refused")
            if not str(error).strip():
                verdict.problems.append(f"{type(error).__name__} without a text")
        except Exception as error:
            verdict.problems.append(f"{type(error).__name__}: {error}")
    verdict.seconds = time.perf_counter() - started
    if verdict.seconds > SLOW:
        verdict.problems.append(f"it took {verdict.seconds:.0f} s")
    return verdict
