"""The processes that run attacks, and the table of what became of them."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence

from tests.attacks.case import Case
from tests.sweeping.worker import Result, Worker


def start() -> Worker[Case]:
    """A worker process."""
    return Worker(Case, (sys.executable, "-m", "tests.attacks.worker"), limit=240, life=400)


def table(results: Sequence[Result[Case]]) -> str:
    """How many attacks on each subject were refused, accepted, or a problem."""
    counts: Counter[tuple[str, str]] = Counter()
    for result in results:
        counts[result.case.subject, "tried"] += 1
        counts[result.case.subject, result.outcome] += 1
        counts[result.case.subject, "problems"] += bool(result.problems)
    columns = ("tried", "refused", "accepted", "problems")
    lines = [f"{'subject':<20}" + "".join(f"{column:>10}" for column in columns)]
    subjects = list(dict.fromkeys(result.case.subject for result in results))
    for name in subjects:
        row = "".join(f"{counts[name, column]:>10}" for column in columns)
        lines.append(f"{name:<20}{row}")
    totals = [sum(counts[name, column] for name in subjects) for column in columns]
    return "\n".join([*lines, f"{'all':<20}" + "".join(f"{total:>10}" for total in totals)])
