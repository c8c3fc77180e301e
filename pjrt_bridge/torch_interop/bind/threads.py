"""Ending PyTorch's OpenMP threads before programs that compute on the same cores.

After a parallel operator the threads of OpenMP wait for the next one without giving up their cores,
for milliseconds (GNU's runtime: 300,000 turns of a loop, unless `OMP_WAIT_POLICY` says otherwise).
A plugin that computes on these cores is slowed down for as long: four operators in PyTorch between
the parts of a GPT-2 cost 30 ms on two cores, and 4 ms when the threads were ended.

The variable `PJRT_BRIDGE_OPENMP_PAUSE` turns it `off`.

Source: OpenMP 5.0, section 3.2.44, `omp_pause_resource_all`.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from pathlib import Path

import torch

from pjrt_bridge import environment
from pjrt_bridge.errors import PjrtError
from pjrt_bridge.runtime import Executable

VARIABLE = "PJRT_BRIDGE_OPENMP_PAUSE"
_PAUSE_SOFT = 1
_LONG = 10_000_000
"""Floating-point operations, or bytes that are read or written, of about a millisecond.

To end threads and to make them anew costs a few tenths of one."""
_TRANSCENDENTAL = 20
"""Operations that an exponential is worth."""


def are_in_the_way(executable: Executable) -> bool:
    """Whether a program computes on the host's cores, and for long enough that it matters.

    Never where the user has turned it off.
    """
    if environment.is_off(VARIABLE) or not executable.client.shares_host_memory:
        return False
    try:
        cost = {name: _number(value) for name, value in executable.cost().items()}
    except PjrtError:
        return False
    operations = cost.get("flops", 0) + _TRANSCENDENTAL * cost.get("transcendentals", 0)
    return max(operations, cost.get("bytes accessed", 0)) >= _LONG


def release_openmp_threads() -> None:
    """End the threads that PyTorch keeps for the calling thread; its next operator makes new ones.

    Does nothing where there are none, and where PyTorch's OpenMP does not offer it.
    """
    pause = _pause()
    if pause is not None:
        pause(_PAUSE_SOFT)


@cache
def _pause() -> Callable[[int], int] | None:
    # The runtime that PyTorch is linked to, of all that the process may hold.
    library = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    try:
        return ctypes.CDLL(str(library)).omp_pause_resource_all
    except (OSError, AttributeError):
        return None


def _number(value: object) -> float:
    return float(value) if isinstance(value, (int, float)) else 0.0
