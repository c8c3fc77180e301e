"""A sweep from the command line, and its file of expected outcomes."""

from __future__ import annotations

import argparse
import os
import sys
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic

from tests.configuration import isolated
from tests.sweeping.journal import Journal
from tests.sweeping.worker import C, Result, Worker, run


@dataclass(frozen=True)
class Sweeping(Generic[C]):
    """What is swept.

    Attributes:
        program: how users call it.
        about: for its help.
        start: makes a worker.
        file: of expected outcomes.
        load: reads the file.
        dump: gives the text of the file.
        table: sums outcomes up.
    """

    program: str
    about: str | None
    start: Callable[[], Worker[C]]
    file: Path
    load: Callable[[], dict[C, str]]
    dump: Callable[[Mapping[C, str]], str]
    table: Callable[[Mapping[C, str]], str]


@isolated()
def main(sweeping: Sweeping[C], arguments: Sequence[str] | None = None) -> int:
    """The process's exit status: 1 where something is wrong or unexpected."""
    parser = argparse.ArgumentParser(prog=sweeping.program, description=sweeping.about)
    parser.add_argument("names", nargs="*", help="only cases whose name contains one of these")
    parser.add_argument("--write", action="store_true", help="write the file of outcomes")
    parser.add_argument("--slowest", type=int, default=0, help="also list so many slow cases")
    parser.add_argument(
        "--jobs", type=int, default=os.cpu_count() or 1, help="processes at once (all cores)"
    )
    parser.add_argument(
        "--journal",
        type=Path,
        help="append each result to this file, and run again only what went wrong there",
    )
    parser.add_argument(
        "--part", type=_part, default=(0, 1), metavar="I/N", help="only the i-th part of n, from 0"
    )
    parser.add_argument("--minutes", type=float, help="begin no case after so many minutes")
    options = parser.parse_args(arguments)
    expected = sweeping.load() if sweeping.file.exists() else {}
    started = time.perf_counter()
    with sweeping.start() as worker:
        every = worker.cases()
    chosen = [
        case
        for case in every
        if (not options.names or any(name in str(case) for name in options.names))
        and _in_part(case, *options.part)
    ]
    journal = Journal(options.journal, every)
    known = {case: item for case, item in journal.known.items() if not item.problems}
    results = [known[case] for case in chosen if case in known]
    left = [case for case in chosen if case not in known]
    for result in run(sweeping.start, left, options.jobs):
        journal.add(result)
        results.append(result)
        _progress(len(results), len(chosen), result)
        if options.minutes and time.perf_counter() - started > 60 * options.minutes:
            break
    results.sort(key=lambda result: every.index(result.case))
    outcomes = {result.case: result.outcome for result in results if not result.problems}
    print(sweeping.table(outcomes))
    print(f"{len(results)} cases in {time.perf_counter() - started:.0f} s")
    for result in sorted(results, key=lambda item: -item.seconds)[: options.slowest]:
        print(f"{result.seconds:8.1f} s  {result.case}")
    wrong = [result for result in results if result.problems]
    if options.write:
        partial = len(results) < len(every)
        kept = {case: text for case, text in expected.items() if partial and case in every}
        sweeping.file.write_text(sweeping.dump({**kept, **outcomes}))
        expected = sweeping.load()
    lines = differences(wrong if options.write else results, expected)
    print("\n".join(lines))
    return 1 if lines else 0


def _part(text: str) -> tuple[int, int]:
    index, count = map(int, text.split("/"))
    if not 0 <= index < count:
        raise ValueError(text)
    return index, count


def _in_part(case: object, index: int, count: int) -> bool:
    """Whether a case belongs to a part; parts are mixed, and the same in every run."""
    return zlib.crc32(str(case).encode()) % count == index


def _progress(done: int, total: int, result: Result[C]) -> None:
    if result.problems or done % 100 == 0:
        print(f"{done}/{total} {result.case}", *result.problems, file=sys.stderr, flush=True)


ROUNDED = " ~rounded"
"""The flag for values beyond the tolerance that are as near to the exact ones as eager's."""


def settled(outcome: str) -> str:
    """An outcome as every machine has it.

    Which sums go beyond a tolerance depends on the processor: a gradient of `layer_norm` that is 0
    comes out of eager as 1.6e-5 with AVX2 and as 0 without, and one of `rms_norm` out of a program
    as 2.5e-9 with FMA and as eager's without. Where it happens, double precision has decided.
    """
    return " & ".join(dict.fromkeys(outcome.replace(ROUNDED, "").split(" & ")))


def differences(results: Iterable[Result[C]], expected: Mapping[C, str]) -> list[str]:
    """Each problem, and each outcome that is not the expected one, as a line."""
    lines = []
    for result in results:
        lines += [f"{result.case}: {problem}" for problem in result.problems]
        known = expected.get(result.case)
        same = known is not None and settled(result.outcome) == settled(known)
        if not result.problems and not same:
            lines.append(f"{result.case}: {result.outcome}, expected {known}")
    return lines


def host_operators(outcomes: Iterable[str]) -> list[tuple[str, int]]:
    """Operators that PyTorch runs and the number of cases, most first."""
    counts: Counter[str] = Counter()
    for outcome in outcomes:
        found: set[str] = set()
        for part in outcome.split(" & "):
            words = part.split()
            for at, word in enumerate(words[:-1]):
                if word in ("mixed", "host"):
                    found.update(words[at + 1].split(","))
        counts.update(found)
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))
