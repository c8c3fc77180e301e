"""Runs cases in a process of their own."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from tests.errors.case import Case
from tests.sweeping.worker import Worker

WORKER = (sys.executable, "-m", "tests.errors.worker")


class Sweep(Worker[Case]):
    """A worker process for calls that may be refused.

    Args:
        command: starts a worker.
        limit: seconds that a case may take.
    """

    def __init__(self, command: Sequence[str] = WORKER, limit: float = 240.0) -> None:
        super().__init__(Case, command, limit=limit, life=400)
