"""Sums along a dimension by constant weights, by a call (`aten/native/weigh.c`).

Images are resized by them, one dimension after the other, and averages taken. XLA's CPU compiler
would copy all terms of the sums before it adds them up.
"""

from __future__ import annotations

import math

import numpy as np

from pjrt_bridge import dtypes
from pjrt_bridge.runtime import Client
from pjrt_bridge.stablehlo import Builder, TensorType, Value, inverse_order, memory_order
from pjrt_bridge.stablehlo.kernels import Kernels
from pjrt_bridge_cpu.aten.library import can_call
from pjrt_bridge_cpu.combining import in_three

TARGET = "pjrt_bridge.weigh.1"
"""Name of the custom call. Its number changes with what it is given."""

LEAST = 1 << 12
"""Products from which on they are worth a call."""

_DTYPES = tuple(map(dtypes.of, ("float32", "float64")))


class WeighedSums(Kernels):
    """Weighted sums that are made as their terms are read.

    Attributes:
        can_weigh: the client's plugin makes the custom call.
    """

    can_weigh = False

    def weigh_along(
        self, b: Builder, x: Value, dim: int, places: np.ndarray, weights: np.ndarray
    ) -> Value:
        """See `Kernels.weigh_along`: in the order in which the elements of `x` are in memory."""
        others = x.size // max(x.shape[dim], 1)
        is_worth_it = others * places.size >= LEAST and math.prod(x.shape) > 0
        if not self.can_weigh or x.dtype not in _DTYPES or not is_worth_it:
            return super().weigh_along(b, x, dim, places, weights)
        order = memory_order(x)
        turned, along = b.transpose(x, order), order.index(dim)
        shape = [len(places) if d == along else size for d, size in enumerate(turned.shape)]
        found = weigh(b, in_three(b, turned, along), places, weights)
        return b.transpose(b.reshape(found, shape), inverse_order(order))


def can_weigh(client: Client) -> bool:
    """Register the custom call with a client's plugin; whether it makes the call."""
    return can_call(client, TARGET, "WEIGH_ALONG")


def weigh(b: Builder, x: Value, places: np.ndarray, weights: np.ndarray) -> Value:
    """The custom call.

    Args:
        b: the builder to emit into.
        x: (outer, length, inner), float32 or float64.
        places: see `Kernels.weigh_along`.
        weights: see there.

    Returns:
        (outer, count, inner).
    """
    (outer, _, inner), (count, _) = x.shape, places.shape
    operands = [
        x,
        b.constant(np.ascontiguousarray(places.T, np.int32)),
        b.constant(np.ascontiguousarray(weights.T), x.dtype),
    ]
    result = TensorType((outer, count, inner), x.dtype)
    (found,) = b.custom_call(TARGET, operands, [result], backend_config={})
    return found
