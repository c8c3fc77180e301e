"""`python -m tests.differential.tensorflow`: random TensorFlow functions through the bridge.

Each runs as `tf.function` and as the bridge's `function`; values, types, shapes and variables are
compared. A program follows from the seed and its index. Programs run in worker processes, which may
die; what fails is printed with its source, without the statements that it does not need.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
import time
from dataclasses import dataclass, replace

# TensorFlow writes a page when it starts.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from collections import Counter
from typing import Any

from pjrt_bridge.child_processes import answers
from tests.configuration import isolated
from tests.sweeping.worker import Result, Verdict, Worker, serve

LIMIT = 120
LIFE = 150


@dataclass(frozen=True)
class TfCase:
    """A program by its seed and index, and a fault to plant before."""

    seed: str
    index: str
    planted: str = ""

    def __str__(self) -> str:
        return " ".join(["seed", self.seed, "index", self.index, self.planted]).strip()


def start() -> Worker[TfCase]:
    """A worker process."""
    command = (sys.executable, "-m", "tests.differential.tensorflow", "--worker")
    return Worker(TfCase, command, limit=LIMIT, life=LIFE)


def run_case(case: TfCase) -> Verdict:
    """Run one program; a failure is shrunk."""
    from tests.differential.tf_faults import FAULTS
    from tests.differential.tf_programs import generate

    started = time.perf_counter()
    program = generate(int(case.seed), int(case.index))
    placement = "auto" if int(case.index) % 4 == 3 else "device"
    verdict = Verdict(outcomes=set(program.features()))
    wanted = FAULTS.wanted.get(case.planted, verdict.outcomes)
    if not verdict.outcomes.isdisjoint(wanted):
        with FAULTS.plant(case.planted):
            verdict.problems += _problems(program, placement, 2 if case.planted else 20)
    verdict.seconds = time.perf_counter() - started
    return verdict


def _problems(program: Any, placement: str, seconds: float) -> list[str]:
    """What a program does otherwise than TensorFlow, with its source, shrunk."""
    from tests.differential.tf_judging import judge, raised

    problems = judge(program, placement)
    if not problems:
        return []
    deadline = time.monotonic() + seconds
    plain = not raised(program)
    progress = True
    while progress and time.monotonic() < deadline:
        progress = False
        for at in reversed(range(len(program.body))):
            smaller = _without(program, at)
            found = judge(smaller, placement)
            if found and (not plain or not raised(smaller)):
                program, problems, progress = smaller, found, True
                break
        for at in reversed(range(len(program.calls))):
            if len(program.calls) > 1:
                calls = (*program.calls[:at], *program.calls[at + 1 :])
                smaller = replace(program, calls=calls)
                if found := judge(smaller, placement):
                    program, problems, progress = smaller, found, True
                    break
    told = f"placement={placement}, symbolic={program.symbolic}, calls={program.calls}"
    return ["\n".join([*problems[:4], told, program.source()])]


def _without(program, at):  # type: ignore[no-untyped-def]
    """The program without a statement and those that need it."""
    from tests.differential.ir import Name

    body, missing, result = [], set(), program.result
    for number, statement in enumerate(program.body):
        if number == at or statement.reads() & missing:
            missing.add(statement.target)
        else:
            body.append(statement)
    known = {statement.target for statement in body} - {""}
    known |= {f"x{number}" for number in range(len(program.arguments))}
    flat = result if isinstance(result, tuple) else (result,)
    if isinstance(result, dict):
        flat = (result["a"], *result["b"])
    left = tuple(item for item in flat if item.name in known) or (Name("x0"),)
    return replace(program, body=tuple(body), result=left)


def run_some(seed: int, first: int, count: int = 0, seconds: float = 0.0) -> list[Result[TfCase]]:
    """Run programs from an index on: so many, or for so many seconds."""
    results = []
    deadline = time.monotonic() + seconds
    with start() as worker:
        index = first
        while index < first + count or (seconds and time.monotonic() < deadline):
            results.append(worker.run(TfCase(str(seed), str(index))))
            for problem in results[-1].problems:
                print(f"# {results[-1].case}: {problem}", flush=True)
            index += 1
    return results


def find_planted(only: str = "all", seconds: float = 60.0, seed: int = 0) -> dict[str, str]:
    """For each planted fault what shows it, in a program that shows nothing without it.

    Args:
        only: the name of one fault.
        seconds: for each; what is not found by then is empty.
        seed: of the programs.
    """
    found: dict[str, str] = {}
    with start() as worker:
        for fault in worker.cases():
            if only not in ("all", fault.planted):
                continue
            deadline = time.monotonic() + seconds
            found[fault.planted] = ""
            for index in itertools.count():
                case = TfCase(str(seed), str(index), fault.planted)
                problems = worker.run(case).problems
                if problems and not worker.run(replace(case, planted="")).problems:
                    found[fault.planted] = problems[0]
                    break
                if time.monotonic() > deadline:
                    break
    return found


def main() -> int:
    """The process's exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.differential.tensorflow")
    parser.add_argument("--seconds", type=float, default=60, help="how long to go on (60)")
    parser.add_argument("--programs", type=int, default=0, help="so many programs instead")
    parser.add_argument("--seed", type=int, default=0, help="of the programs (0)")
    parser.add_argument("--first", type=int, default=0, help="index of the first program (0)")
    parser.add_argument("--only", type=int, default=None, help="the program of this index alone")
    parser.add_argument(
        "--planted",
        nargs="?",
        const="all",
        default="",
        metavar="NAME",
        help="plant a fault, or each of them in turn, and see whether it is found",
    )
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        from tests.differential.tf_faults import FAULTS

        # The cases that are listed are the faults, as first programs.
        faults = [TfCase("0", "0", name) for name in FAULTS.faults]
        serve(answers(), TfCase, faults, run_case)
        return 0
    return _sweep(options)


@isolated()
def _sweep(options: argparse.Namespace) -> int:
    if options.planted:
        hits = find_planted(options.planted, options.seconds, options.seed)
        for name, problem in hits.items():
            print(f"# {name}: {problem or 'NOT FOUND'}")
        return 0 if hits and all(hits.values()) else 1
    started = time.perf_counter()
    if options.only is not None:
        from tests.differential.tf_programs import generate

        print(generate(options.seed, options.only).source())
        results = run_some(options.seed, options.only, 1)
    elif options.programs:
        results = run_some(options.seed, options.first, options.programs)
    else:
        results = run_some(options.seed, options.first, seconds=options.seconds)
    counts: Counter[str] = Counter()
    for result in results:
        counts.update(result.outcome.split(" & "))
    print(", ".join(f"{name} {count}" for name, count in sorted(counts.items()) if name))
    failed = sum(bool(result.problems) for result in results)
    taken = time.perf_counter() - started
    print(f"{len(results)} programs, {failed} failures, {taken:.0f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
