"""The one way to measure here: contenders take turns, and medians are compared.

Machines are shared and noisy, so times of separate runs say nothing. In each round every contender
makes a call that is not timed, and is timed once; the order changes from round to round.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class CallTimes:
    """Median and least seconds per call of each contender of one case."""

    case: str
    medians: Mapping[str, float]
    bests: Mapping[str, float]

    def ratio(self, contender: str, base: str) -> float:
        """Time of a contender in units of another's."""
        return self.medians[contender] / self.medians[base]


def measure(
    case: str,
    contenders: Mapping[str, Callable[[], object]],
    *,
    rounds: int,
    seconds_per_sample: float = 10e-3,
    clock: Callable[[], float] = time.perf_counter,
) -> CallTimes:
    """Time contenders in turns.

    Args:
        case: name of what they all do.
        contenders: each a call without arguments.
        rounds: samples for each contender.
        seconds_per_sample: a sample repeats the call until it lasts about this long.
        clock: in seconds; that of the process does not count what others do with its cores.
    """
    repeats = {name: _repeats(call, seconds_per_sample, clock) for name, call in contenders.items()}
    samples: dict[str, list[float]] = {name: [] for name in contenders}
    names = list(contenders)
    for turn in range(rounds):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            call = contenders[name]
            call()
            started = clock()
            for _ in range(repeats[name]):
                call()
            samples[name].append((clock() - started) / repeats[name])
    return CallTimes(
        case,
        medians={name: statistics.median(values) for name, values in samples.items()},
        bests={name: min(values) for name, values in samples.items()},
    )


def _repeats(call: Callable[[], object], seconds: float, clock: Callable[[], float]) -> int:
    call()
    started = clock()
    call()
    return max(1, int(seconds / max(clock() - started, 1e-7)))
