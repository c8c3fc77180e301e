"""Sums and means of bags of rows of a table, by a call (`aten/native/bags.c`).

XLA's CPU compiler copies the rows, counts which bag each is in, and adds them one after the other.
"""

from __future__ import annotations

import numpy as np

from pjrt_bridge import dtypes
from pjrt_bridge.runtime import Client
from pjrt_bridge.stablehlo import Builder, TensorType, Value, memory_order
from pjrt_bridge.stablehlo.kernels import Kernels, convert
from pjrt_bridge_cpu.aten.library import can_call

TARGET = "pjrt_bridge.bags.1"
"""Name of the custom call. Its number changes with what it is given."""

LEAST = 1 << 6
"""Elements of the rows from which on they are worth a call."""

_FLOAT32, _FLOAT64, _BFLOAT16 = map(dtypes.of, ("float32", "float64", "bfloat16"))
_POSITIONS = ("int32", "int64")


class SummedBags(Kernels):
    """Rows that are summed as they are read.

    Attributes:
        can_sum_bags: the client's plugin makes the custom call.
    """

    can_sum_bags = False

    def sums_of_bags(
        self,
        b: Builder,
        table: Value,
        positions: Value,
        ends: Value,
        factors: Value | None,
        *,
        mean: bool,
        ignored: int,
    ) -> Value | None:
        """See `Kernels.sums_of_bags`."""
        takes = (
            self.can_sum_bags
            and table.dtype in (_FLOAT32, _FLOAT64, _BFLOAT16)
            and positions.dtype.name in _POSITIONS
            and positions.size * table.shape[1] >= LEAST
            and memory_order(table) == (0, 1)
        )
        if not takes:
            return None
        wide = _FLOAT64 if table.dtype == _FLOAT64 else _FLOAT32
        given = b.full((0,), 0, wide) if factors is None else convert(b, factors, wide)
        return sum_bags(b, table, positions, ends, given, mean=mean, ignored=ignored)


def can_sum_bags(client: Client) -> bool:
    """Register the custom call with a client's plugin; whether it makes the call."""
    return can_call(client, TARGET, "SUM_BAGS")


def sum_bags(
    b: Builder,
    table: Value,
    positions: Value,
    ends: Value,
    factors: Value,
    *,
    mean: bool,
    ignored: int,
) -> Value:
    """The custom call.

    Args:
        b: the builder to emit into.
        table: (rows, width), float32, float64 or bfloat16.
        positions: (count,), int32 or int64.
        ends: (bags + 1,), int64. Bag i has the positions from one of them up to the next.
        factors: of the rows, (count,) or (0,), float64 for a table of that, else float32.
        mean: sums are divided by the number of rows.
        ignored: a position that is left out, as those out of range are.

    Returns:
        (bags, width), of the table's element type.
    """
    result = TensorType((ends.shape[0] - 1, table.shape[1]), table.dtype)
    config = {"how": np.array([mean, ignored], np.int64)}
    operands = [table, positions, ends, factors]
    (found,) = b.custom_call(TARGET, operands, [result], backend_config=config)
    return found
