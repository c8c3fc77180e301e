"""`python -m tests.faults [NAME ...]`: every operation under every fault, and a table of it.

Names restrict the run to cases whose name contains one of them. The exit status is 1 where a case
crashed, hung, leaked, gave a wrong result or an error that does not say what failed. With
`--plugin` the faults are in another plugin's table than that of `cpu`; operations that it does not
have are listed and left out.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from functools import partial

from tests.configuration import isolated
from tests.faults import matrix
from tests.faults.case import NOT_HERE
from tests.sweeping.worker import run


@isolated()
def main() -> int:
    """The process's exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("names", nargs="*", help="only cases whose name contains one of these")
    parser.add_argument("--slowest", type=int, default=0, help="also list so many slow cases")
    parser.add_argument("--list", action="store_true", help="show how each case went")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes at once")
    parser.add_argument("--plugin", default="cpu", help="whose table gets the faults (cpu)")
    parser.add_argument("--minutes", type=float, help="begin no case after so many minutes")
    options = parser.parse_args()
    started = time.perf_counter()
    start = partial(matrix.start, plugin=options.plugin)
    recorded, cases = matrix.record(options.jobs, start)
    chosen = [
        case
        for case in cases
        if not options.names or any(name in str(case) for name in options.names)
    ]
    results = []
    for result in run(start, chosen, options.jobs):
        if options.minutes and time.perf_counter() - started > 60 * options.minutes:
            break
        results.append(result)
        if result.problems or len(results) % 200 == 0:
            print(f"{len(results)}/{len(chosen)} {result.case}", *result.problems, flush=True)
    results.sort(key=lambda result: cases.index(result.case))
    if options.list:
        for result in results:
            print(f"{result.case}: {result.outcome}")
    for result in sorted(results, key=lambda item: -item.seconds)[: options.slowest]:
        print(f"{result.seconds:8.1f} s  {result.case}")
    for result in recorded:
        if result.outcome.startswith(NOT_HERE):
            print(f"{result.case.operation}: {result.outcome}")
    print(matrix.table(results))
    wrong = [result for result in (*recorded, *results) if result.problems]
    print(f"{len(wrong)} with problems; {time.perf_counter() - started:.0f} s")
    for result in wrong:
        print(f"{result.case}:", *result.problems, sep="\n    ")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
