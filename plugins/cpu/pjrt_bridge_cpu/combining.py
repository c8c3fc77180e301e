"""Updates combined with an array's elements along a dimension, by a call (`aten/native/combine.c`).

XLA's CPU compiler makes a loop over whole slices, and goes through what has a position for each
element, or several slices side by side, one element at a time.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

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
        in_place=0,
    )
    return combined
