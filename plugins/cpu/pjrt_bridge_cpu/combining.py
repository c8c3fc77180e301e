"""Updates combined with an array's elements along a dimension, by a call (`aten/native/combine.c`).

XLA's CPU compiler makes a loop over whole slices, and goes through what has a position for each
element, or several slices side by side, one element at a time.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import reduce

import numpy as np

from pjrt_bridge import dtypes
from pjrt_bridge.runtime import Client
from pjrt_bridge.stablehlo import Builder, Value, memory_order
from pjrt_bridge.stablehlo.kernel_attributes import Combination
from pjrt_bridge.stablehlo.kernels import Kernels, convert
from pjrt_bridge_cpu.aten.library import can_call

TARGET = "pjrt_bridge.combine.1"
"""Name of the custom call. Its number changes with what it is given."""

LEAST = 1 << 10
"""Updates from which on they are worth a call."""

LEAST_SLICE = 8
"""Elements at one position in several dimensions from which on it is worth computing one of it."""

_HOWS: Mapping[Combination, int] = {"sum": 0, "prod": 1, "max": 2, "min": 3, "last": 4}
_DTYPES = tuple(map(dtypes.of, ("float32", "float64", "int32", "int64")))
_INT64 = dtypes.of("int64")
_POSITIONS = (_INT64, dtypes.of("int32"))


class CombinedElements(Kernels):
    """Updates that are combined in the array's own memory.

    Attributes:
        can_combine: the client's plugin makes the custom call.
    """

    can_combine = False

    def combine_along(
        self, b: Builder, x: Value, dim: int, index: Value, updates: Value, how: Combination
    ) -> Value:
        """See `Kernels.combine_along`."""
        row_major = tuple(range(x.rank))
        each = math.prod(index.shape[dim + 1 :]) > 1
        # Of slices that lie otherwise in memory the compiler makes whole ones.
        beside = math.prod(x.shape[:dim]) > 1 and memory_order(updates) == row_major
        takes = (
            self.can_combine
            and how in _HOWS
            and x.dtype in _DTYPES
            and index.dtype in _POSITIONS
            and updates.size >= LEAST
            and (each or beside)
            and memory_order(x) == row_major
        )
        if not takes:
            return super().combine_along(b, x, dim, index, updates, how)
        found = combine(
            b,
            in_three(b, x, dim),
            in_three(b, _repeated(b, convert(b, index, _INT64), dim, updates.shape), dim),
            in_three(b, updates, dim),
            how,
        )
        return b.reshape(found, x.shape)

    def combine_slices(
        self,
        b: Builder,
        x: Value,
        dims: Sequence[int],
        positions: Sequence[Value],
        updates: Value,
        how: Combination,
    ) -> Value:
        """See `Kernels.combine_slices`: dimensions that lie side by side are written as one."""
        first, behind = dims[0], dims[-1] + 1
        if self.can_combine and is_worth_joining(x, dims):
            sizes, at = [x.shape[dim] for dim in dims], positions[0]
            line = b.reshape(x, (*x.shape[:first], math.prod(sizes), *x.shape[behind:]))
            index = b.reshape(
                joined_positions(b, sizes, positions, nearest=False),
                [at.size if d == first else 1 for d in range(line.rank)],
            )
            slices = b.reshape(updates, (*x.shape[:first], at.size, *x.shape[behind:]))
            return b.reshape(self.combine_along(b, line, first, index, slices, how), x.shape)
        return super().combine_slices(b, x, dims, positions, updates, how)


def is_worth_joining(x: Value, dims: Sequence[int]) -> bool:
    """Whether dimensions lie side by side, and positions in all of them are few beside elements."""
    slices = x.size // max(math.prod(x.shape[dim] for dim in dims), 1)
    return dims[-1] - dims[0] < len(dims) and (len(dims) == 1 or slices >= LEAST_SLICE)


def joined_positions(
    b: Builder, sizes: Sequence[int], positions: Sequence[Value], *, nearest: bool
) -> Value:
    """Positions in several dimensions that lie side by side, as positions in all of them.

    Args:
        b: the builder to emit into.
        sizes: of the dimensions.
        positions: in each of them, of one shape.
        nearest: one out of range is moved to the nearest that is not; else it becomes -1.
    """
    shape = positions[0].shape
    zero, outside = b.full(shape, 0, _INT64), b.full(shape, -1, _INT64)
    parts = [convert(b, item, _INT64) for item in positions]
    held = [
        b.maximum(b.minimum(at, b.full(shape, size - 1, _INT64)), zero)
        for at, size in zip(parts, sizes, strict=True)
    ]
    joined = held[0]
    for at, size in zip(held[1:], sizes[1:], strict=True):
        joined = b.add(b.multiply(joined, b.full(shape, size, _INT64)), at)
    if nearest:
        return joined
    inside = [b.compare(at, given, "EQ") for at, given in zip(held, parts, strict=True)]
    return b.select(reduce(b.and_, inside), joined, outside)


def _repeated(b: Builder, index: Value, dim: int, shape: Sequence[int]) -> Value:
    """Positions for all dimensions before another one or for none of them, and the same behind."""
    wanted = list(index.shape)
    for dims in (range(dim), range(dim + 1, index.rank)):
        if any(index.shape[d] > 1 for d in dims):
            wanted[dims.start : dims.stop] = shape[dims.start : dims.stop]
    if tuple(wanted) == index.shape:
        return index
    return b.broadcast_in_dim(index, tuple(wanted), tuple(range(index.rank)))


def in_three(b: Builder, x: Value, dim: int) -> Value:
    """The dimensions before one, that one, and those behind it."""
    return b.reshape(x, (math.prod(x.shape[:dim]), x.shape[dim], math.prod(x.shape[dim + 1 :])))


def can_combine(client: Client) -> bool:
    """Register the custom call with a client's plugin; whether it makes the call."""
    return can_call(client, TARGET, "COMBINE_ALONG")


def combine(b: Builder, x: Value, index: Value, updates: Value, how: Combination) -> Value:
    """The custom call.

    Args:
        b: the builder to emit into.
        x: (outer, length, inner), float32, float64, int32 or int64.
        index: int64, of the shape of the updates, or 1 in the outer or the inner dimension.
        updates: (outer, count, inner).
        how: "sum", "prod", "max", "min" or "last".

    Returns:
        `x` with the updates whose position is in range.
    """
    (combined,) = b.custom_call(
        TARGET,
        [x, index, updates],
        [x.type],
        backend_config={"how": np.array([_HOWS[how]], np.int64)},
        in_place={0: 0},
    )
    return combined
