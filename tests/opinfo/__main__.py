"""`python -m tests.opinfo`: every operator of torch's database through the `pjrt` backend.

Prints a table of what became of them, and what differs from the file of expected outcomes. With
`--write` the file is written anew; wrong results are never written into it. Names restrict the
run to cases whose name contains one of them.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from queue import SimpleQueue

from tests.opinfo import expectations
from tests.opinfo.case import Case
from tests.opinfo.sweep import Result, Sweep


def main() -> int:
    """The process's exit status: 1 where something is wrong or unexpected."""
    parser = argparse.ArgumentParser(prog="python -m tests.opinfo", description=__doc__)
    parser.add_argument("names", nargs="*", help="only cases whose name contains one of these")
    parser.add_argument("--write", action="store_true", help="write the file of outcomes")
    parser.add_argument("--slowest", type=int, default=0, help="also list so many slow cases")
    parser.add_argument(
        "--jobs", type=int, default=os.cpu_count() or 1, help="processes at once (all cores)"
    )
    options = parser.parse_args()
    expected = expectations.load() if expectations.FILE.exists() else {}
    started = time.perf_counter()
    with Sweep() as worker:
        chosen = [
            case
            for case in worker.cases()
            if not options.names or any(name in str(case) for name in options.names)
        ]
    results: list[Result] = []
    for result in run(chosen, options.jobs):
        results.append(result)
        _progress(len(results), len(chosen), result)
    results.sort(key=lambda result: result.case)
    outcomes = {result.case: result.outcome for result in results if not result.problems}
    print(expectations.table(outcomes))
    print(f"{len(results)} cases in {time.perf_counter() - started:.0f} s")
    for result in sorted(results, key=lambda item: -item.seconds)[: options.slowest]:
        print(f"{result.seconds:8.1f} s  {result.case}")
    wrong = [result for result in results if result.problems]
    if options.write:
        kept = {case: text for case, text in expected.items() if options.names}
        version = importlib.metadata.version("torch").split("+")[0]
        expectations.FILE.write_text(expectations.dump({**kept, **outcomes}, version))
        expected = expectations.load()
    lines = expectations.differences(wrong if options.write else results, expected)
    print("\n".join(lines))
    return 1 if lines else 0


def run(cases: Sequence[Case], jobs: int) -> Iterator[Result]:
    """What became of each case, as it comes, with so many workers."""
    idle: SimpleQueue[Sweep] = SimpleQueue()

    def one(case: Case) -> Result:
        worker = idle.get()
        try:
            return worker.run(case)
        finally:
            idle.put(worker)

    with ExitStack() as stack:
        for _ in range(jobs):
            idle.put(stack.enter_context(Sweep()))
        pool = stack.enter_context(ThreadPoolExecutor(jobs))
        for future in as_completed([pool.submit(one, case) for case in cases]):
            yield future.result()


def _progress(done: int, total: int, result: Result) -> None:
    if result.problems or done % 100 == 0:
        print(f"{done}/{total} {result.case}", *result.problems, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
