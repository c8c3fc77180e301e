"""Runs cases in this process: one line of JSON in, one out.

`python -m tests.opinfo.worker [wide]` first writes the list of all cases, then answers each line
that names a case. What torch or a plugin prints goes to standard error.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
import warnings
from dataclasses import asdict
from typing import Any, TextIO

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import torch

from tests.opinfo import cases
from tests.opinfo.case import Case
from tests.opinfo.running import run_case


def main() -> None:
    """Serve until standard input ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    # A measurement that Dynamo logs; it flushes the caches, a tenth of the time of a small case.
    torch._dynamo.guards.profile_guard_manager = lambda *_: 0.0
    cases.prepare()
    entries = cases.entries()
    wide = "wide" in sys.argv[1:]
    _answer(answers, [asdict(case) for case in cases.all_cases(wide)])
    for line in sys.stdin:
        case = Case(**json.loads(line))
        _answer(answers, _run(case, entries[case.entry], 10 if wide else 3))


def _run(case: Case, info: Any, samples: int) -> dict[str, Any]:
    try:
        verdict = run_case(case, info, samples)
    except Exception:
        last = traceback.format_exc().splitlines()[-6:]
        return {"outcomes": [], "problems": [" ".join(last)], "seconds": 0.0}
    return {
        "outcomes": sorted(verdict.outcomes),
        "problems": verdict.problems,
        "seconds": verdict.seconds,
    }


def _answer(stream: TextIO, value: object) -> None:
    stream.write(json.dumps(value) + "\n")
    stream.flush()


if __name__ == "__main__":
    main()
