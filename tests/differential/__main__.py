"""`python -m tests.differential`: random programs in eager mode and in every mode of the backend.

Each program follows from the seed and its index: `--seed S --only INDEX` runs it again. What fails
is shrunk and printed as a test. The exit status is 1 where anything failed. With `--record` the run
is counted in a file that is kept, and `--total` sums that up (`recording.py`).
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from tests.configuration import isolated
from tests.differential.faults import FAULTS, WANTED
from tests.differential.generating import generate
from tests.differential.modes import NAMES
from tests.differential.planting import find
from tests.differential.recording import KEPT, Recorded
from tests.differential.recording import total as sum_up
from tests.differential.report import Report
from tests.differential.runner import RanProgram, Runner, Settings, Worker


@isolated()
def main() -> int:
    """The process's exit status."""
    options = _options()
    if options.total:
        print(sum_up())
        return 0
    if options.planted:
        return _find_planted(options)
    settings = Settings(
        options.seed,
        options.modes_each,
        tuple(options.modes),
        "",
        options.shrink,
        options.alike,
        tuple(options.ignore),
        tuple(options.want),
    )
    report = Report(options.seed)
    if options.only is not None:
        print(generate(options.seed, options.only).source())
        worker = Worker()
        try:
            ran = Runner(settings).one(worker, options.only)
        finally:
            worker.stop()
        report.add(ran)
        _show(ran)
        print(report.summary())
        return 1 if report.failures or report.invalid else 0
    deadline = time.monotonic() + options.seconds

    def going(number: int) -> bool:
        if options.programs:
            return number < options.programs
        return time.monotonic() < deadline

    shown = time.monotonic()
    for ran in Runner(settings, options.jobs).run(options.first, going):
        report.add(ran)
        _show(ran)
        if time.monotonic() - shown > 20:
            shown = time.monotonic()
            print(
                f"... {report.programs} programs, {len(report.failures)} failures, "
                f"{report.elapsed:.0f} s",
                file=sys.stderr,
                flush=True,
            )
    if options.table:
        print(report.table())
    print(report.summary())
    for line in report.invalid[:5]:
        print(f"invalid: {line}")
    if options.report:
        report.write(Path(options.report))
    if options.record:
        Recorded.of(report, options.first).append()
    return 1 if report.failures or report.invalid else 0


def _find_planted(options: argparse.Namespace) -> int:
    names = list(FAULTS) if options.planted == "all" else [options.planted]
    missed = 0
    for name in names:
        wanted = options.want or WANTED.get(name, ())
        hit = find(
            name, options.seconds, options.seed, wanted, options.ignore, shrinking=options.shrink
        )
        missed += hit.ran is None
        print(hit, flush=True)
    print(f"{len(names) - missed} of {len(names)} found within {options.seconds:.0f} s")
    return 1 if missed else 0


def _show(ran: RanProgram) -> None:
    for failure, test in zip(ran.answer.failures, ran.tests, strict=True):
        print(f"# program {ran.index}, mode {failure.mode_name}: {failure.severity}")
        for line in (failure.text, *failure.others):
            print(f"#   {line}")
        print(test, flush=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.differential",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seconds", type=float, default=60, help="how long to go on (60)")
    parser.add_argument("--programs", type=int, default=0, help="so many programs instead")
    parser.add_argument("--seed", type=int, default=0, help="of the programs (0)")
    parser.add_argument("--first", type=int, default=0, help="index of the first program (0)")
    parser.add_argument("--only", type=int, default=None, help="the program of this index alone")
    parser.add_argument("--jobs", type=int, default=1, help="worker processes at once (1)")
    parser.add_argument(
        "--modes", nargs="*", default=[], choices=NAMES, help="modes to choose from (all)"
    )
    parser.add_argument("--modes-each", type=int, default=1, help="modes of a program (1)")
    parser.add_argument("--shrink", type=float, default=20, help="seconds for a failure (20)")
    parser.add_argument(
        "--alike", type=int, default=2, help="failures of one kind and mode that are shrunk (2)"
    )
    parser.add_argument(
        "--ignore", nargs="*", default=[], metavar="KIND", help="kinds of differences to leave out"
    )
    parser.add_argument(
        "--want",
        nargs="*",
        default=[],
        metavar="FEATURE",
        help="run only programs with one of these features, such as mutation.out or the pair "
        "sizes.0+views.slice",
    )
    parser.add_argument(
        "--planted",
        nargs="?",
        const="all",
        default="",
        metavar="NAME",
        help="plant a fault, or each of them in turn, and see how long it takes to find it",
    )
    parser.add_argument("--report", default="", help="write counts and failures to this file")
    parser.add_argument("--record", action="store_true", help=f"count the run in {KEPT.name}")
    parser.add_argument("--total", action="store_true", help="say what was recorded, and end")
    parser.add_argument("--table", action="store_true", help="print counts of features")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
