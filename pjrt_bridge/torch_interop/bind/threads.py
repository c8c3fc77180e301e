"""PyTorch's OpenMP threads, which are in the way of programs on the same cores.

After a parallel operator the threads of OpenMP wait for the next one without giving up their cores,
for milliseconds (GNU's runtime: 300,000 turns of a loop, unless `OMP_WAIT_POLICY` says otherwise).
A plugin that computes on these cores is slowed down for as long: a training step of 5 ms, whose
loss is computed in PyTorch, took 7. So the dispatcher ends them before long programs.

The variable `PJRT_BRIDGE_OPENMP_PAUSE` turns it `off`.

Source: OpenMP 5.0, section 3.2.44, `omp_pause_resource_all`.
"""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path

import torch

from pjrt_bridge import environment

VARIABLE = "PJRT_BRIDGE_OPENMP_PAUSE"
_WORTH = 500_000
_WORTH_OF_EACH = 50_000
"""Nanoseconds of a program before which it is worth to end one thread, and each further one.

To end a thread and to make it anew takes two tenths of a millisecond (measured)."""


def idle_threads() -> tuple[int, int] | None:
    """See `Framework.idle_threads`.

    None where the user has turned it off, PyTorch has one thread, or its OpenMP cannot end them.
    """
    others = torch.get_num_threads() - 1
    end = _address_of_pause()
    if environment.is_off(VARIABLE) or end is None or not others:
        return None
    return end, _WORTH + _WORTH_OF_EACH * (others - 1)


@cache
def _address_of_pause() -> int | None:
    # The runtime that PyTorch is linked to, of all that the process may hold.
    library = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    try:
        function = ctypes.CDLL(str(library)).omp_pause_resource_all
    except (OSError, AttributeError):
        return None
    return ctypes.cast(function, ctypes.c_void_p).value
