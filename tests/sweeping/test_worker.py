"""A case is given up when it has computed for too long, and not because the machine is busy."""

from __future__ import annotations

import sys
from dataclasses import dataclass

import pytest

from tests.sweeping.worker import Result, Worker

CASES = """
import json, sys, time
print(json.dumps([{"name": "only"}]), flush=True)
for line in sys.stdin:
    end = time.process_time() + COMPUTES
    while time.process_time() < end:
        pass
    time.sleep(SLEEPS)
    print(json.dumps(dict(outcomes=["device"], problems=[], seconds=0.1)), flush=True)
"""


@dataclass(frozen=True)
class One:
    name: str


def outcome(computes: float, sleeps: float, limit: float) -> Result[One]:
    source = CASES.replace("COMPUTES", str(computes)).replace("SLEEPS", str(sleeps))
    with Worker(One, [sys.executable, "-c", source], limit=limit, life=9) as worker:
        return worker.run(One("only"))


def test_a_case_that_waits_for_its_processor_goes_on() -> None:
    assert outcome(0.1, 1.5, limit=1).outcome == "device"


@pytest.mark.parametrize(("computes", "sleeps"), [(60, 0), (0, 60)])
def test_one_that_computes_or_waits_for_too_long_is_given_up(computes: int, sleeps: int) -> None:
    assert outcome(computes, sleeps, limit=1).problems == ("no answer within 1 s",)
