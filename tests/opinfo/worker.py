"""Runs cases in this process: one line of JSON in, one out.

`python -m tests.opinfo.worker [wide SAMPLES]` first writes the list of all cases, then answers each
line that names a case. What torch or a plugin prints goes to standard error.
"""

from __future__ import annotations

import os
import sys
import warnings

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import torch

from tests.dynamo import skip_guard_timing
from tests.opinfo import cases
from tests.opinfo.case import Case
from tests.opinfo.running import run_case, run_wide_case
from tests.sweeping import worker


def main() -> None:
    """Serve until standard input ends."""
    stream = worker.answers()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    skip_guard_timing()
    cases.prepare()
    entries = cases.entries()
    if sys.argv[1:2] == ["wide"]:
        count = int(sys.argv[2])
        worker.serve(
            stream,
            Case,
            cases.all_cases(wide=True),
            lambda case: run_wide_case(case, entries[case.entry], count),
        )
    else:
        worker.serve(
            stream,
            Case,
            cases.all_cases(wide=False),
            lambda case: run_case(case, entries[case.entry]),
        )


if __name__ == "__main__":
    main()
