"""`python -m tests.planted [--only NAME] [--jobs N] [--list]`: do the tests find planted faults?

Each fault in `tests/planted/faults` is planted by itself into a copy of the tree, and the tests of
the changed module are run until one fails. At the end these run without a fault: one that fails
then, too, has found nothing. The exit status is 1 where no test found a fault, and where one cannot
be planted any more because the code has changed.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence

from tests.planted.fault import Fault, load
from tests.planted.running import FaultOutcome, failing_anyway, trees, try_all


def main(arguments: Sequence[str] | None = None) -> int:
    """The process's exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.planted", description=__doc__)
    parser.add_argument(
        "--only", action="append", metavar="NAME", help="faults or groups whose names begin so"
    )
    parser.add_argument("--jobs", type=int, default=1, help="faults at once")
    parser.add_argument("--list", action="store_true", help="list the faults and their tests")
    options = parser.parse_args(arguments)
    faults = [fault for fault in load() if _is_chosen(fault, options.only)]
    if not faults:
        parser.error(f"no fault is named {options.only}")
    if options.list:
        for fault in faults:
            print(f"{fault.group:<12} {fault.name:<32} {fault.path}: {' '.join(fault.tests)}")
        print(f"{len(faults)} faults")
        return 0
    started = time.perf_counter()
    hits = []
    with trees(max(1, min(options.jobs, len(faults)))) as places:
        for hit in try_all(faults, places):
            hits.append(hit)
            print(line(hit), flush=True)
        anyway = failing_anyway(places[0], {hit.test for hit in hits if hit.test})
    missed = [hit for hit in hits if not hit.found or hit.test in anyway]
    seconds = time.perf_counter() - started
    print(f"{len(hits) - len(missed)} of {len(hits)} faults found; {seconds:.0f} s")
    for hit in missed:
        why = f": {hit.test} fails without it, too" if hit.test in anyway else ""
        print(f"not found: {hit.fault.name}{why}")
    return 1 if missed else 0


def line(hit: FaultOutcome) -> str:
    """What is printed about a fault."""
    test = hit.test or hit.death or "NOT FOUND"
    head = f"{hit.fault.group:<12} {hit.fault.name:<32} {hit.seconds:5.0f} s  {test}"
    return f"{head}\n    {hit.objection}" if hit.objection else head


def _is_chosen(fault: Fault, only: Sequence[str] | None) -> bool:
    return not only or fault.name.startswith(tuple(only)) or fault.group in only


if __name__ == "__main__":
    sys.exit(main())
