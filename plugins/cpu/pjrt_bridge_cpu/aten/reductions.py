"""Reductions of values in memory, by PyTorch's kernels.

Reductions of computed values stay with XLA, which fuses both into one loop.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from pjrt_bridge.stablehlo import Builder, TensorType, Value, is_in_memory, memory_order
from pjrt_bridge.torch_interop.lowering.api import Kernels, Reduction
from pjrt_bridge_cpu.aten.calls import Cut, KernelCall, Out
from pjrt_bridge_cpu.aten.operators import AMAX, AMIN, SUM, Operator
from pjrt_bridge_cpu.aten.rules import FLOAT32, PIECES, UsableKernels, grain, load_of

LEAST = 1 << 16
"""Elements from which on it is worth a call."""

_ROWS = 64
"""Of all elements. XLA runs a program of fewer than 1,000 additions on the thread that calls."""

_OPERATORS: Mapping[Reduction, Operator] = {"sum": SUM, "max": AMAX, "min": AMIN}


class AtenReductions(Kernels):
    """Sums and extremes over the last dimensions.

    Attributes:
        use: emits the calls.
    """

    use: UsableKernels

    def reduce(self, b: Builder, reduction: Reduction, x: Value, dims: Sequence[int]) -> Value:
        """See `Kernels.reduce`."""
        operator = _OPERATORS.get(reduction)
        first = x.rank - len(dims)
        last = sorted(dims) == list(range(first, x.rank))
        if operator is None or not last or not _takes(x) or self.reduces_last(reduction, x):
            return super().reduce(b, reduction, x, dims)
        # A reduction of all elements: as a few rows first, then of their results.
        kept = x.shape[:first] or (_divisor(x.size),)
        rows = math.prod(kept)
        length = x.size // rows
        call = KernelCall(
            operator,
            {"self": b.reshape(x, (rows, length)), "dim": (1,), "out": Out()},
            [TensorType((rows,), x.dtype)],
            cut=Cut(grain(x.size, rows), {"self": 0}, (0,), PIECES),
            load=load_of(operator, x),
        )
        found = self.use(b, call, x.dtype) if rows > 1 < length else None
        if found is None:
            return super().reduce(b, reduction, x, dims)
        if first:
            return b.reshape(found[0], kept)
        return super().reduce(b, reduction, found[0], (0,))


def _divisor(size: int) -> int:
    return next(rows for rows in range(_ROWS, 0, -1) if size % rows == 0)


def _takes(x: Value) -> bool:
    return (
        x.dtype == FLOAT32
        and x.rank > 1
        and x.size >= LEAST
        and is_in_memory(x)
        and memory_order(x) == tuple(range(x.rank))
    )
