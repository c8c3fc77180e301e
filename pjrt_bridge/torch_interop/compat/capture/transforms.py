"""Fourier transforms whose batch is a single row in the call that is traced.

Torch finds the strides of a transform's result by a reshape and a resize of it. Where sizes are
symbols and one of them is 1, the reshape gives other numbers than it was asked for, and the resize
raises.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import _meta_registrations

from pjrt_bridge.torch_interop.compat.promises.values import is_always


def lay_out_transforms(is_for_us: Callable[[], bool]) -> None:
    """Have the strides of transforms on the host calculated, for all sizes of a graph.

    Args:
        is_for_us: whether what Dynamo traces now is for this backend.
    """
    known: Any = _meta_registrations
    before, device_of = (getattr(known, name, None) for name in ("_exec_fft", "device_hint"))
    if before is None or device_of is None:
        return

    def _exec_fft(out: Any, self: Any, out_sizes: Any, dim: Any, *, forward: bool) -> Any:
        symbolic = any(isinstance(size, torch.SymInt) for size in out_sizes)
        # Elsewhere the result is what was given.
        if not symbolic or device_of(self) != "cpu" or not is_for_us():
            return before(out, self, out_sizes, dim, forward=forward)
        steps, step = [1] * len(out_sizes), 1
        for at in reversed((*_in_memory(self.stride(), dim), *dim)):
            steps[at], step = step, step * out_sizes[at]
        return out.new_empty_strided(out_sizes, steps)

    known._exec_fft = _exec_fft


def _in_memory(strides: Sequence[Any], transformed: Sequence[int]) -> list[int]:
    """The dimensions that are not transformed, from the slowest to the fastest varying."""
    others = [at for at in range(len(strides)) if at not in transformed]
    # To sort by strides is a condition on sizes.
    if all(is_always(strides[one] >= strides[other]) for one, other in pairwise(others)):
        return others
    return sorted(others, key=strides.__getitem__, reverse=True)
