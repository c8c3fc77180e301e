"""Positions of extremes along a dimension, by a call (`aten/native/extremes.c`).

XLA's CPU compiler compares numbers with their positions one pair after the other.
"""

from __future__ import annotations

from pjrt_bridge.dtypes import DType
from pjrt_bridge.runtime import Client
from pjrt_bridge.stablehlo import Builder, TensorType, Value
from pjrt_bridge.stablehlo.kernels import Kernels
from pjrt_bridge_cpu.aten.library import can_call
from pjrt_bridge_cpu.combining import in_three
from pjrt_bridge_cpu.sorting import ORDERED

TARGET = "pjrt_bridge.extremes.1"
"""Name of the custom call. Its number changes with what it is given."""

LEAST = 1 << 9
"""Elements from which on it is worth a call."""


class LocatedExtremes(Kernels):
    """Positions of extremes, found by many comparisons at once.

    Attributes:
        can_locate: the client's plugin makes the custom call.
    """

    can_locate = False

    def first_extremes(
        self, b: Builder, x: Value, dim: int, *, largest: bool, positions: DType
    ) -> Value | None:
        """See `Kernels.first_extremes`."""
        takes = x.size >= LEAST and x.shape[dim] < 1 << 31 and x.dtype.name in ORDERED
        if not (self.can_locate and takes):
            return super().first_extremes(b, x, dim, largest=largest, positions=positions)
        found = locate(b, in_three(b, x, dim), largest, positions)
        return b.reshape(found, (*x.shape[:dim], *x.shape[dim + 1 :]))


def can_locate(client: Client) -> bool:
    """Register the custom call with a client's plugin; whether it makes the call."""
    return can_call(client, TARGET, "FIND_EXTREMES")


def locate(b: Builder, x: Value, largest: bool, positions: DType) -> Value:
    """The custom call.

    Args:
        b: the builder to emit into.
        x: (outer, length, inner), of element types as in `sorting.ORDERED`.
        largest: whether the largest elements are looked for, or the smallest.
        positions: the type of positions, int32 or int64.

    Returns:
        (outer, inner): the first positions.
    """
    outer, _, inner = x.shape
    config = {} if largest else {"smallest": "yes"}
    result = TensorType((outer, inner), positions)
    return b.custom_call(TARGET, [x], [result], backend_config=config)[0]
