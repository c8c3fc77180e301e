"""Runs cases in a process of their own."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from tests.opinfo.case import Case
from tests.sweeping.worker import Worker

LIMIT = 120.0
"""Seconds that a case may take."""

LIFE = 500
"""Cases after which a worker is replaced, so that what they leave behind does not add up."""

WORKER = (sys.executable, "-m", "tests.opinfo.worker")


class Sweep(Worker[Case]):
    """A worker process for operators.

    Args:
        command: starts a worker.
        limit: seconds that a case may take.
    """

    def __init__(self, command: Sequence[str] = WORKER, limit: float = LIMIT) -> None:
        super().__init__(Case, command, limit=limit, life=LIFE)


class WideSweep(Worker[Case]):
    """A worker process for operators with so many samples, in every element type and direction.

    Args:
        samples: of a case, at most.
        limit: seconds that a case may take.
    """

    def __init__(self, samples: int, limit: float = 3 * LIMIT) -> None:
        super().__init__(Case, (*WORKER, "wide", str(samples)), limit=limit, life=LIFE)
