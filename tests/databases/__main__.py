"""`python -m tests.databases`: torch's databases of modules, optimizers and functions.

`module_db`, `optim_db`, `hop_db`, `custom_op_db` and `autograd_function_db` of torch's tests, each
entry through the `pjrt` backend against eager, modules and optimizers on torch's device `pjrt` too.
Prints how many cases of each database went how, and what is wrong beside `exceptions.py`. Names
restrict the run to cases whose name contains all of them; `--journal FILE` keeps results, and runs
only what is not in there. The exit status is 1 where something is wrong.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter, defaultdict
from pathlib import Path

from tests.configuration import isolated
from tests.databases.exceptions import EXCEPTIONS
from tests.databases.sweep import Sweep
from tests.sweeping.command import host_operators
from tests.sweeping.journal import Journal
from tests.sweeping.worker import run


@isolated()
def main() -> int:
    """The process's exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.databases", description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--journal", type=Path)
    asked = parser.parse_args()
    with Sweep() as worker:
        every = worker.cases()
    chosen = [case for case in every if all(name in str(case) for name in asked.names)]
    journal = Journal(asked.journal, every)
    known = {case: item for case, item in journal.known.items() if not item.problems}
    results = [known[case] for case in chosen if case in known]
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    wrong = 0
    for result in run(Sweep, [case for case in chosen if case not in known], asked.jobs):
        journal.add(result)
        results.append(result)
        for problem in result.problems:
            wrong += result.case not in EXCEPTIONS
            print(f"{result.case}: {problem}", flush=True)
    for result in results:
        kind = "with problems" if result.problems else result.outcome.split()[0]
        counts[f"{result.case.database} {result.case.way}"][kind] += 1
    for name, found in sorted(counts.items()):
        print(name, ", ".join(f"{number} {kind}" for kind, number in found.most_common()))
    for name, number in host_operators(result.outcome for result in results)[:20]:
        print(f"{number:6}  {name} in PyTorch")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
