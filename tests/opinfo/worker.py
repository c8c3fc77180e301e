"""Runs cases in this process: one line of JSON in, one out.

`python -m tests.opinfo.worker [wide SAMPLES]` first writes the list of all cases, then answers each
line that names a case. What torch or a plugin prints goes to standard error.
"""

from __future__ import annotations

import sys

from tests.opinfo import cases
from tests.opinfo.case import Case
from tests.opinfo.running import run_case, run_wide_case
from tests.sweeping import torch_worker, worker
from tests.sweeping.worker import Verdict


def main() -> None:
    """Serve until standard input ends."""
    stream = torch_worker.begin()
    cases.prepare()
    entries = cases.entries()
    wide = sys.argv[1:2] == ["wide"]

    def judge(case: Case) -> Verdict:
        if wide:
            return run_wide_case(case, entries[case.entry], int(sys.argv[2]))
        return run_case(case, entries[case.entry])

    worker.serve(stream, Case, cases.all_cases(wide), judge)


if __name__ == "__main__":
    main()
