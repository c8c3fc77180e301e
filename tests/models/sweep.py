"""Runs models in a process of their own."""

from __future__ import annotations

import sys

from tests.models.case import Case
from tests.sweeping.worker import Worker

LIMIT = 240.0
"""Seconds that a case may take."""

LIFE = 60
"""Cases after which a worker is replaced."""

WORKER = (sys.executable, "-m", "tests.models.worker")


def start() -> Worker[Case]:
    """A worker process for models."""
    return Worker(Case, WORKER, limit=LIMIT, life=LIFE)
