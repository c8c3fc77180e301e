"""Runs cases in this process: one line of JSON in, one out; see `tests.sweeping.worker`."""

from __future__ import annotations

from tests.errors.calls import all_cases
from tests.errors.case import Case
from tests.errors.running import run_case
from tests.opinfo import cases
from tests.sweeping import torch_worker, worker


def main() -> None:
    """Serve until standard input ends."""
    stream = torch_worker.begin()
    cases.prepare()
    entries = cases.entries()
    worker.serve(stream, Case, all_cases(), lambda case: run_case(case, entries[case.entry]))


if __name__ == "__main__":
    main()
