"""Reductions of integers and float64 in memory by a call (`aten/native/total.c`).

XLA's CPU compiler adds the elements of a row one after the other, or makes windows of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from pjrt_bridge.runtime import Client
from pjrt_bridge.stablehlo import Builder, TensorType, Value, is_in_memory
from pjrt_bridge.stablehlo.kernel_attributes import Reduction
from pjrt_bridge_cpu.aten.library import can_call
from pjrt_bridge_cpu.reduced_expressions import HOWS

TARGET = "pjrt_bridge.total.1"
"""Name of the custom call. Its number changes with what it is given."""

LEAST = 1 << 12
"""Elements from which on they are worth a call."""

_REDUCED = ("int32", "int64", "float64")


def can_total(client: Client) -> bool:
    """Register the custom call with a client's plugin; whether it makes the call."""
    return can_call(client, TARGET, "TOTAL_ALONG")


def totalled(b: Builder, reduction: Reduction, x: Value, dims: Sequence[int]) -> Value | None:
    """The reduction of a row-major array over dimensions side by side; None where it is no call."""
    first, count = min(dims, default=0), len(dims)
    is_run = sorted(dims) == list(range(first, first + count))
    if not (count and is_run and reduction in HOWS and x.dtype.name in _REDUCED):
        return None
    if x.size < LEAST or not is_in_memory(x):
        return None
    rest = (*x.shape[:first], *x.shape[first + count :])
    found = total(b, HOWS.index(reduction), x, math.prod(x.shape[:first]), math.prod(rest[first:]))
    return b.reshape(found, rest)


def total(b: Builder, how: int, x: Value, outer: int, inner: int) -> Value:
    """The custom call.

    Args:
        b: the builder to emit into.
        how: see `native/total.h`.
        x: int32, int64 or float64, with elements.
        outer: how many there are in the dimensions before those that are reduced.
        inner: in those behind them.

    Returns:
        (outer, inner), of the element type of `x`.
    """
    given = b.reshape(x, (outer, x.size // (outer * inner), inner))
    config = {"how": np.array([how], np.int64)}
    result = TensorType((outer, inner), x.dtype)
    return b.custom_call(TARGET, [given], [result], backend_config=config)[0]
