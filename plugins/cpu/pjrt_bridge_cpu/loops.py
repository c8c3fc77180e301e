"""Whether XLA's CPU compiler divides the loops of a program between threads.

It hands each loop of more than about a quarter of a megabyte to its threads. These sleep while a
product or another call runs, and to wake one takes 50 to 100 us on a virtual machine, longer than
most loops of a small model last; what comes behind the loop then begins on the other thread, whose
core has none of the data. On 2 cores of a Xeon, models whose loops compute 0.3 to 0.6 MB each took
0.83 to 0.95 of the time with undivided loops, and those with 0.9 to 1.7 MB each 1.1 to 1.2. Without
calls between them the threads are still awake: there half as much is worth dividing.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from pjrt_bridge.runtime.core.compile_options import Override
from pjrt_bridge.stablehlo import Program
from pjrt_bridge_cpu.aten.processor import cores

WHOLE: Mapping[str, Override] = MappingProxyType(
    {"xla_disable_hlo_passes": "cpu-parallel-task-assigner"}
)
"""Compiler flags under which no loop is divided. Products by Eigen still are."""

LARGEST = 350 << 10
"""Loops are not divided where their values have at most so many bytes on average. This is the limit
for many threads, in programs with calls between the loops."""


def flags_for(program: Program) -> Mapping[str, Override]:
    """The compiler flags that suit a program."""
    threads = cores()
    found = program.loops()
    if threads == 1 or not found:
        return {}
    # Two threads save half of a loop's time, many threads nearly all of it.
    largest = LARGEST / (1 - 1 / threads)
    if not any(target.startswith("pjrt_bridge.") for target in program.custom_calls):
        largest /= 2
    return WHOLE if sum(found) / len(found) <= largest else {}
