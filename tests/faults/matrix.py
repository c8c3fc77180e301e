"""The matrix: every operation under every single fault of every function that it calls.

What an operation calls is learnt by running it once; so a new operation, or a call that it makes
from now on, is in the matrix without a word.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from tests.faults.case import NOT_HERE, Case
from tests.faults.faulty import kinds_for
from tests.sweeping.worker import Result, Worker, run

LIMIT = 20.0
"""Seconds that a case may take; one that takes longer hangs."""

LIFE = 100_000
"""A worker is not replaced: what cases leave behind is to be seen."""

WORKER = (sys.executable, "-m", "tests.faults.worker")

CUTS = ("80", "95", "110", "117")
"""Lengths of tables of older versions, in functions."""


_BUILT_BEFORE = "torch/warm"
"""Operations that run what was compiled before; what a table lacks decides how that is done, so
missing functions are a matter of those that compile."""


def start(command: Sequence[str] = WORKER, plugin: str = "cpu") -> Worker[Case]:
    """A worker process, for cases over a plugin."""
    command = command if plugin == "cpu" else (*command, plugin)
    return Worker(Case, command, limit=LIMIT, life=LIFE)


def calls(results: Iterable[Result[Case]]) -> dict[str, dict[str, int]]:
    """How often each operation calls each function, from the results of the recording cases."""
    return {result.case.operation: dict(_counts(result.outcome)) for result in results}


def _counts(outcome: str) -> Iterator[tuple[str, int]]:
    for item in outcome.split(" & ") if outcome else ():
        function, _, count = item.partition("=")
        yield function, int(count)


def cases(called: Mapping[str, Mapping[str, int]]) -> list[Case]:
    """All of them."""
    found = []
    for operation, functions in called.items():
        apart: list[Case] = []
        for function, count in functions.items():
            kinds = kinds_for(function, count)
            if operation.startswith(_BUILT_BEFORE):
                kinds.remove("missing")
            for kind in kinds:
                # What needs a table of its own comes last: the others share one.
                (apart if kind == "missing" else found).append(Case(operation, function, kind))
        found += apart
        if not operation.startswith(_BUILT_BEFORE):
            found += [Case(operation, cut, "cut") for cut in CUTS]
    return found


def record(
    jobs: int, begin: Callable[[], Worker[Case]] = start
) -> tuple[list[Result[Case]], list[Case]]:
    """What became of the recording cases, and the matrix that follows from them.

    Operations that the plugin does not have are not in the matrix.
    """
    with begin() as worker:
        names = worker.cases()
    recorded = list(run(begin, names, jobs))
    recorded.sort(key=lambda result: names.index(result.case))
    here = [result for result in recorded if not result.outcome.startswith(NOT_HERE)]
    return recorded, cases(calls(here))


def table(results: Sequence[Result[Case]]) -> str:
    """Kinds of faults and how operations took them, and the numbers of the matrix."""
    outcomes: dict[str, Counter[str]] = {}
    for result in results:
        row = outcomes.setdefault(result.case.kind, Counter())
        if result.problems:
            row["problem"] += 1
        elif "raises" in result.outcome:
            row["raises"] += 1
        elif "PyTorch" in result.outcome:
            row["PyTorch"] += 1
        else:
            row["works"] += 1
    columns = ("raises", "works", "PyTorch", "problem")
    lines = [f"{'fault':<16}" + "".join(f"{column:>9}" for column in columns)]
    for kind, row in outcomes.items():
        lines.append(f"{kind:<16}" + "".join(f"{row[column]:>9}" for column in columns))
    functions: dict[str, set[str]] = {}
    for result in results:
        if result.case.kind != "cut":
            functions.setdefault(result.case.function, set()).add(result.case.kind)
    fewest = min(map(len, functions.values()), default=0)
    lines.append(
        f"{len(results)} cases: {len({result.case.operation for result in results})} operations, "
        f"{len(functions)} functions, {fewest} or more faults of each, "
        f"{sum(map(len, functions.values()))} different faults"
    )
    return "\n".join(lines)
