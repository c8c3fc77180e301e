"""`python -m tests.attacks [SUBJECT ...]`: damaged and hostile inputs of every kind, and a table.

Each input goes to a part of the bridge in a process that may die: altered programs, saved models,
cache entries, command lines, and wrong arguments of every public function. What is allowed is an
error of the bridge or a result. The exit status is 1 where an input killed its process, raised
another exception, or took too long.
"""

from __future__ import annotations

import argparse
import os
import sys
import time

from tests.attacks.case import Case, cases
from tests.attacks.registry import SUBJECTS
from tests.attacks.sweep import start, table
from tests.sweeping.worker import run


def main() -> int:
    """The process's exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.attacks",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog=f"subjects: {', '.join(SUBJECTS)}",
    )
    parser.add_argument(
        "subjects", nargs="*", help="only subjects whose name contains one of these; or NAME:NUMBER"
    )
    parser.add_argument("--part", type=int, default=1, help="one attack in so many", metavar="N")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes at once")
    options = parser.parse_args()
    started = time.perf_counter()
    chosen = [
        case
        for case in cases(options.part)
        if not options.subjects or _wanted(case, options.subjects)
    ]
    results = []
    for result in run(start, chosen, options.jobs):
        results.append(result)
        for problem in result.problems:
            print(f"{result.case.subject}:{result.case.number}: {problem}", flush=True)
    print(table(results))
    print(f"{time.perf_counter() - started:.0f} s")
    return 1 if any(result.problems for result in results) else 0


def _wanted(case: Case, subjects: list[str]) -> bool:
    exact = f"{case.subject}:{case.number}"
    return any(wanted == exact if ":" in wanted else wanted in case.subject for wanted in subjects)


if __name__ == "__main__":
    sys.exit(main())
