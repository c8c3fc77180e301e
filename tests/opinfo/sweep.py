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
