"""A batch of inputs for one target: what a worker is given, and how it runs it."""

from __future__ import annotations

import gc
import time
from dataclasses import dataclass
from pathlib import Path

from hypothesis import HealthCheck, Phase, given, seed, settings

from pjrt_bridge.runtime import live_handles
from tests.counting import resident
from tests.fuzz.targets import TARGETS
from tests.sweeping.worker import Verdict

GROWTH = 64 << 20
"""Bytes by which a process may grow over a batch."""


@dataclass(frozen=True)
class Batch:
    """What is run.

    Attributes:
        target: name of it.
        number: of the batch; other numbers give other inputs.
        size: how many inputs.
        last: file that names the input that is being tried, for who finds the process dead.
    """

    target: str
    number: int
    size: int
    last: str

    def __str__(self) -> str:
        return f"{self.target} {self.number}"


def run_batch(batch: Batch) -> Verdict:
    """What became of a batch: how many inputs there were, and were accepted."""
    started = time.perf_counter()
    target = TARGETS[batch.target]
    verdict = Verdict()
    tried = accepted = 0
    before = (dict[str, int](), 0)

    def one(value: object) -> None:
        nonlocal tried, accepted, before
        if tried == batch.size // 2:
            before = _census()
        Path(batch.last).write_text(f"{value!r}")
        tried += 1
        try:
            accepted += target.check(value)
        except Exception as error:
            verdict.problems.append(f"{type(error).__name__}: {error} from {value!r:.2000}")

    settings(
        max_examples=batch.size,
        database=None,
        # No conftest is loaded here.
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )(seed(batch.number)(given(target.inputs())(one)))()
    handles, memory = _census()
    if handles != before[0]:
        verdict.problems.append(f"alive: {handles}, before {before[0]}")
    if memory - before[1] > GROWTH:
        verdict.problems.append(f"grew by {(memory - before[1]) >> 20} MiB")
    verdict.outcomes = {f"tried={tried}", f"accepted={accepted}"}
    verdict.seconds = time.perf_counter() - started
    return verdict


def _census() -> tuple[dict[str, int], int]:
    for _ in range(100):
        gc.collect()
        found = live_handles()
        if "Event" not in found:
            break
        time.sleep(0.01)
    return found, resident()
