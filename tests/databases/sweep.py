"""All cases, how one is run, and a process of its own for it."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

from tests.databases import functions, modules, optimizers
from tests.databases.case import Case
from tests.databases.running import run_case
from tests.sweeping.worker import Verdict, Worker

WORKER = (sys.executable, "-m", "tests.databases.worker")


def all_cases() -> Iterator[Case]:
    """Every case of every database."""
    for database in (modules, optimizers, functions):
        yield from database.all_cases()


def run(case: Case) -> Verdict:
    """Run a case in this process, which has the device in use."""
    if case.database == functions.NAME:
        return functions.run_case(case)
    make = {modules.NAME: modules.program, optimizers.NAME: optimizers.program}[case.database]
    return run_case(case, make)


class Sweep(Worker[Case]):
    """A worker process for cases of databases.

    Args:
        command: starts a worker.
        limit: processor seconds that a case may take.
    """

    def __init__(self, command: Sequence[str] = WORKER, limit: float = 300.0) -> None:
        super().__init__(Case, command, limit=limit, life=200)
