"""`python -m tests.differential.worker`: runs the programs that it is asked for, one a line."""

from __future__ import annotations

import os

# What one program compiled, another must not find; nor may measurements decide what runs where.
os.environ.setdefault("PJRT_BRIDGE_CACHE", "off")
os.environ.setdefault("PJRT_BRIDGE_CALIBRATION", "off")

import json
import sys
import traceback
import warnings

from tests.differential.faults import plant
from tests.differential.generating import generate
from tests.differential.judging import Verdict, judge, judge_in
from tests.differential.messages import Answer, Found, Request, packed, plain, unpacked
from tests.sweeping.worker import answers


def answer(request: Request) -> Answer:
    """Run what is asked for."""
    if request.given:
        program, mode = unpacked(request.given)
    else:
        try:
            program, mode = generate(request.seed, request.index), None
        except Exception:
            return Answer(invalid=" | ".join(traceback.format_exc().splitlines()[-6:]))
    with plant(request.planted):
        if mode is not None:
            verdict = judge_in(program, mode, request.ignored)
        else:
            verdict = judge(program, request.count, request.only, request.ignored)
    return _answer(verdict, sorted(program.used()), len(program.body))


def _answer(verdict: Verdict, features: list[str], statements: int) -> Answer:
    failures = [
        Found(
            packed(item.mode),
            item.mode.name,
            item.difference.severity,
            item.difference.kind,
            str(item.difference),
            [str(other) for other in item.others[:8]],
        )
        for item in verdict.failures
    ]
    return Answer(
        failures,
        features,
        verdict.modes,
        verdict.refused,
        verdict.torches,
        verdict.rounding,
        verdict.raised,
        verdict.programs,
        statements,
        verdict.seconds,
    )


def main() -> None:
    """Answer until standard input ends."""
    stream = answers()
    warnings.simplefilter("ignore")
    for line in sys.stdin:
        values = json.loads(line)
        values["only"], values["ignored"] = tuple(values["only"]), tuple(values["ignored"])
        try:
            found = answer(Request(**values))
        except Exception:
            found = Answer(invalid=" | ".join(traceback.format_exc().splitlines()[-6:]))
        stream.write(json.dumps(plain(found)) + "\n")
        stream.flush()


if __name__ == "__main__":
    main()
