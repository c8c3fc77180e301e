"""Whether XLA's CPU compiler divides the loops of a program between threads.

It hands each loop of more than about a quarter of a megabyte to its threads. These sleep while a
product or another call runs, and to wake one takes 50 to 100 us on a virtual machine, longer than
most loops of a small model last; what comes behind the loop then begins on the other thread, whose
core has none of the data. On 2 cores of a Xeon, models whose loops compute 0.3 to 0.6 MB each took
0.83 to 0.95 of the time with undivided loops, and those with 0.9 to 1.7 MB each 1.1 to 1.2. Without
calls between them the threads are still awake: there half as much is worth dividing.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from types import MappingProxyType

from pjrt_bridge.runtime.core.compile_options import Override
from pjrt_bridge.stablehlo import Program

WHOLE: Mapping[str, Override] = MappingProxyType(
    {"xla_disable_hlo_passes": "cpu-parallel-task-assigner"}
)
"""Compiler flags under which no loop is divided. Products by Eigen still are."""

LARGEST = 350 << 10
"""Mean bytes of the values that a program's loops compute, up to which they are not divided, for
endlessly many threads and with calls between the loops."""


def flags_for(program: Program) -> Mapping[str, Override]:
    """The compiler flags that suit a program."""
    threads = _threads()
    found = program.loops()
    if threads == 1 or not found:
        return {}
    # As much as the threads save, which is half of the time for two of them.
    largest = LARGEST / (1 - 1 / threads)
    if not any(target.startswith("pjrt_bridge.") for target in program.custom_calls):
        largest /= 2
    return WHOLE if sum(found) / len(found) <= largest else {}


def _threads() -> int:
    affinity = getattr(os, "sched_getaffinity", None)
    return os.cpu_count() or 1 if affinity is None else len(affinity(0))
