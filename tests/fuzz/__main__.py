"""`python -m tests.fuzz [TARGET ...]`: thousands of malformed inputs, and a table of them.

The exit status is 1 where an input killed its process, raised what is no error of the bridge, or
left something behind.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

from tests.configuration import isolated
from tests.fuzz.sweep import INPUTS, SIZE, batches, start, table
from tests.sweeping.worker import run


@isolated()
def main() -> int:
    """The process's exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("targets", nargs="*", help="only targets whose name contains one of these")
    parser.add_argument("--inputs", type=int, default=INPUTS, help="of each target")
    parser.add_argument("--seed", type=int, default=0, help="number of the first batch")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes at once")
    options = parser.parse_args()
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        chosen = [
            batch
            for batch in batches(Path(folder), options.inputs // SIZE, options.seed)
            if not options.targets or any(name in batch.target for name in options.targets)
        ]
        results = []
        for result in run(start, chosen, options.jobs):
            results.append(result)
            for problem in result.problems:
                print(f"{result.case}: {problem}", flush=True)
                if problem.startswith("the process"):
                    print(f"    with {Path(result.case.last).read_text()}", flush=True)
    print(table(results))
    print(f"{time.perf_counter() - started:.0f} s")
    return 1 if any(result.problems for result in results) else 0


if __name__ == "__main__":
    sys.exit(main())
