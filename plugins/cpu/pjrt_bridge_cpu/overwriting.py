"""Parts of values that are written: in place where that can be, and with what is computed of them.

XLA's CPU compiler writes a part that is computed of the same value in place, in one loop with what
computes it. Where the value that is written is a reshape of what the loop reads, it does not see
that both are one (jaxlib 0.10): the loop reads what it has written already. A concatenation is not
written in place.
"""

from __future__ import annotations

from collections.abc import Sequence

from pjrt_bridge import dtypes
from pjrt_bridge.stablehlo import (
    Builder,
    Value,
    inverse_order,
    is_argument,
    is_in_memory,
    may_be_computed_with,
    memory_order,
)
from pjrt_bridge.stablehlo.kernels import Kernels, convert
from pjrt_bridge_cpu import windows

_INT64, _UINT64 = map(dtypes.of, ("int64", "uint64"))

_LEAST = 1 << 20
"""Bytes of an array from which on one part is worth a call, where the compiler converts nothing: a
loop over steps that writes the result of each takes longer with calls."""


class Overwrites(Kernels):
    """Writes by a call into what is in memory, or a concatenation with what is around a part.

    Attributes:
        can_write: the client's plugin makes the custom call.
    """

    can_write = False

    def overwrite(self, b: Builder, x: Value, part: Value, starts: Sequence[int | Value]) -> Value:
        """See `Kernels.overwrite`."""
        is_half = x.dtype.is_float and x.dtype.bits == 16
        least = windows.LEAST if is_half else _LEAST
        if self.can_write and is_in_memory(x) and windows.is_worth_it(x, least):
            return self._written_part(b, x, part, starts)
        fixed = [at for at in starts if isinstance(at, int)]
        if len(fixed) < x.rank or is_argument(x) or not may_be_computed_with(part, x):
            return super().overwrite(b, x, part, starts)
        low = list(fixed)
        for dim, (at, size) in enumerate(zip(fixed, x.shape, strict=True)):
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

    def write_slices(
        self,
        b: Builder,
        x: Value,
        dims: Sequence[int],
        positions: Value,
        slices: Value,
        counting: int,
    ) -> Value:
        """See `Kernels.write_slices`."""
        if not (self.can_write and windows.is_worth_it(x)):
            return super().write_slices(b, x, dims, positions, slices, counting)
        shape = [1 if dim in dims else size for dim, size in enumerate(x.shape)]
        # Behind as many of the dimensions that windows have, and slices have not.
        kept = [dim for dim in range(x.rank) if dim not in dims]
        at = kept[counting] if counting < len(kept) else x.rank
        count = positions.shape[0]
        found = b.reshape(slices, (*shape[:at], count, *shape[at:]))
        return self._written(b, x, dims, convert(b, positions, _INT64), found, at)

    def _written_part(
        self, b: Builder, x: Value, part: Value, starts: Sequence[int | Value]
    ) -> Value:
        dims = [dim for dim in range(x.rank) if part.shape[dim] < x.shape[dim]]
        if not dims:
            return part
        places = []
        for dim in dims:
            at = starts[dim]
            if isinstance(at, Value):
                last = x.shape[dim] - part.shape[dim]
                if at.dtype == _UINT64:
                    at = b.minimum(at, b.full((), last, _UINT64))
                low, high = (b.full((), limit, _INT64) for limit in (0, last))
                place = b.clamp(low, convert(b, at, _INT64), high)
            else:
                place = b.full((), at, _INT64)
            places.append(b.reshape(place, (1, 1)))
        positions = b.concatenate(places, 1)
        return self._written(b, x, dims, positions, b.reshape(part, (1, *part.shape)), 0)

    def _written(
        self,
        b: Builder,
        x: Value,
        dims: Sequence[int],
        positions: Value,
        found: Value,
        counting: int,
    ) -> Value:
        """The call, on a value in its own order in memory."""
        order = memory_order(x)
        if order == tuple(range(x.rank)):
            return windows.write(b, x, dims, positions, found, counting)
        # The dimensions of windows without the one that counts them.
        place = [dim if dim < counting else dim + 1 for dim in range(x.rank)]
        turned = b.transpose(found, (counting, *(place[dim] for dim in order)))
        named = [order.index(dim) for dim in dims]
        written = windows.write(b, b.transpose(x, order), named, positions, turned, 0)
        return b.transpose(written, inverse_order(order))


def _with(bounds: Sequence[int], dim: int, bound: int) -> list[int]:
    return [*bounds[:dim], bound, *bounds[dim + 1 :]]
