"""Parts of arrays one behind the other, by a call (`aten/native/join.c`).

XLA's CPU compiler chooses the operand for each element by itself, where it has sliced one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from pjrt_bridge.runtime import Client
from pjrt_bridge.stablehlo import Builder, TensorType, Value
from pjrt_bridge.stablehlo.kernels import Kernels
from pjrt_bridge_cpu.aten.library import can_call
from pjrt_bridge_cpu.combining import in_three

TARGET = "pjrt_bridge.join.1"
"""Name of the custom call. Its number changes with what it is given."""

LEAST = 1 << 17
"""Bytes of the result from which on it is worth a call."""

LEAST_PART = 1 << 7
"""Bytes that lie side by side in an operand, on average."""

_MOST_PARTS = 8


class JoinedParts(Kernels):
    """Concatenations of what is in memory, copied run by run.

    Attributes:
        can_join: the client's plugin makes the custom call.
    """

    can_join = False

    def join(
        self, b: Builder, arrays: Sequence[Value], ranges: Sequence[tuple[int, int]], dim: int
    ) -> Value | None:
        """See `Kernels.join`."""
        first = arrays[0]
        length = sum(end - begin for begin, end in ranges)
        shape = (*first.shape[:dim], length, *first.shape[dim + 1 :])
        run = math.prod(shape[dim:]) * first.dtype.bits // 8
        size = run * math.prod(shape[:dim])
        is_worth_it = size >= LEAST and run >= LEAST_PART * len(arrays)
        if not (self.can_join and is_worth_it and len(arrays) <= _MOST_PARTS):
            return super().join(b, arrays, ranges, dim)
        return b.reshape(joined(b, [in_three(b, x, dim) for x in arrays], ranges), shape)


def can_join(client: Client) -> bool:
    """Register the custom call with a client's plugin; whether it makes the call."""
    return can_call(client, TARGET, "JOIN_PARTS")


def joined(b: Builder, arrays: Sequence[Value], ranges: Sequence[tuple[int, int]]) -> Value:
    """The custom call.

    Args:
        b: the builder to emit into.
        arrays: (outer, any, inner), of one element type of whole bytes.
        ranges: of each the first element along the second dimension, and the one behind the last.

    Returns:
        (outer, length, inner).
    """
    outer, _, inner = arrays[0].shape
    length = sum(end - begin for begin, end in ranges)
    result = TensorType((outer, length, inner), arrays[0].dtype)
    config = {"ranges": np.array(ranges, np.int64).reshape(-1)}
    return b.custom_call(TARGET, arrays, [result], backend_config=config)[0]
