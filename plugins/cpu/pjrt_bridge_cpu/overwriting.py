"""Parts of values that are written with what is computed of the same values.

XLA's CPU compiler writes such a part in place, in one loop with what computes it. Where the value
that is written is a reshape of what the loop reads, it does not see that both are one (jaxlib
0.10): the loop reads what it has written already. A concatenation is not written in place.
"""

from __future__ import annotations

from collections.abc import Sequence

from pjrt_bridge.stablehlo import Builder, Value, is_argument, may_be_computed_with
from pjrt_bridge.stablehlo.kernels import Kernels


class Overwrites(Kernels):
    """Concatenates a part with what is around it, where it is computed of the same value."""

    def overwrite(self, b: Builder, x: Value, part: Value, starts: Sequence[int]) -> Value:
        """See `Kernels.overwrite`."""
        if is_argument(x) or not may_be_computed_with(part, x):
            return super().overwrite(b, x, part, starts)
        low = list(starts)
        for dim, (at, size) in enumerate(zip(starts, x.shape, strict=True)):
            end = at + part.shape[dim]
            high = [first + count for first, count in zip(low, part.shape, strict=True)]
            around = [
                b.slice(x, _with(low, dim, first), _with(high, dim, last))
                for first, last in ((0, at), (end, size))
                if first < last
            ]
            if around:
                before, after = around[: at > 0], around[at > 0 :]
                part = b.concatenate([*before, part, *after], dim)
            low[dim] = 0
        return part


def _with(bounds: Sequence[int], dim: int, bound: int) -> list[int]:
    return [*bounds[:dim], bound, *bounds[dim + 1 :]]
