"""Sorts along a dimension, by a call (`aten/native/sort.c`).

XLA's CPU compiler compares two elements at a time, by a function that it calls for each pair.
"""

from __future__ import annotations

import math

from pjrt_bridge.dtypes import DType
from pjrt_bridge.runtime import Client
from pjrt_bridge.stablehlo import Builder, TensorType, Value, inverse_order
from pjrt_bridge.stablehlo.kernels import Kernels
from pjrt_bridge_cpu.aten.library import can_call

TARGET = "pjrt_bridge.sort.2"
"""Name of the custom call. Its number changes with what it is given."""

LEAST = 64
"""Elements from which on it is worth a call."""

SELECTED = 20
"""A selection of the largest float32 of a row, at most one of so many elements, is left to XLA's
CPU compiler, which makes it without a sort and in less time."""

_WHOLE = tuple(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))
ORDERED = frozenset(("bool", *_WHOLE, "bfloat16", "float16", "float32", "float64"))
"""Names of the element types that have an order, and that calls take."""


class SortedRows(Kernels):
    """Sorts by the digits of the elements.

    Attributes:
        can_sort: the client's plugin makes the custom call.
    """

    can_sort = False

    def sort(
        self,
        b: Builder,
        x: Value,
        dim: int,
        *,
        descending: bool,
        positions: DType,
        total: bool = False,
        first: int | None = None,
    ) -> tuple[Value, Value] | None:
        """See `Kernels.sort`."""
        is_selection = descending and total and _is_selection(x, dim, first)
        if not self._sorts(x, dim) or is_selection:
            how = {"descending": descending, "total": total}
            return super().sort(b, x, dim, **how, positions=positions, first=first)
        order = [*(d for d in range(x.rank) if d != dim), dim]
        line = x if dim == x.rank - 1 else b.transpose(x, order)
        rows = b.reshape(line, (math.prod(line.shape[:-1]), line.shape[-1]))
        found = sort_rows(b, rows, descending, positions, total=total)
        shaped = [b.reshape(item, line.shape) for item in found]
        if line is not x:
            shaped = [b.transpose(item, inverse_order(order)) for item in shaped]
        return shaped[0], shaped[1]

    def _sorts(self, x: Value, dim: int) -> bool:
        long = x.size >= LEAST and x.shape[dim] < 1 << 31
        return self.can_sort and long and x.dtype.name in ORDERED


def _is_selection(x: Value, dim: int, first: int | None) -> bool:
    """Whether XLA's compiler selects the elements that are read, if they are the largest."""
    can_select = x.dtype.name == "float32" and dim == x.rank - 1
    return can_select and first is not None and first * SELECTED <= x.shape[dim]


def can_sort(client: Client) -> bool:
    """Register the custom call with a client's plugin; whether it makes the call."""
    return can_call(client, TARGET, "SORT_ROWS")


def sort_rows(
    b: Builder, x: Value, descending: bool, positions: DType, *, total: bool
) -> tuple[Value, Value]:
    """The custom call.

    Args:
        b: the builder to emit into.
        x: (rows, length), booleans, integers or real floats of 16 bits and more.
        descending: whether a row begins with its largest element.
        positions: the type of positions, int32 or int64.
        total: whether floats are in the total order of their bits.

    Returns:
        The elements of each row in order, and the positions that they had.
    """
    said = {"descending": descending, "total": total}
    config = {name: "yes" for name, is_so in said.items() if is_so}
    results = [x.type, TensorType(x.shape, positions)]
    values, places = b.custom_call(TARGET, [x], results, backend_config=config)
    return values, places
