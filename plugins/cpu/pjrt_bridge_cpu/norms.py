"""Layer norm, RMS norm and group norm, by a call (`aten/native/norm.c`).

XLA's CPU compiler makes a loop of each sum and one of the result, each of which reads the value
from memory, and converts bfloat16 in all of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from pjrt_bridge import dtypes
from pjrt_bridge.dtypes import DType
from pjrt_bridge.runtime import Client
from pjrt_bridge.stablehlo import Builder, TensorType, Value, memory_order
from pjrt_bridge.stablehlo.kernel_attributes import Norm
from pjrt_bridge.stablehlo.kernels import Kernels, convert
from pjrt_bridge_cpu.aten.library import can_call

TARGET = "pjrt_bridge.norm.3"
"""Name of the custom call. Its number changes with what it is given."""

LEAST = 1 << 6
"""Elements from which on it is worth a call."""

PORTABLE, AVX2, AVX512 = range(3)
"""The widest vectors that a call may use."""

_FLOAT32, _BFLOAT16 = map(dtypes.of, ("float32", "bfloat16"))


class NormalizedRows(Kernels):
    """Norms that read and write memory once.

    Attributes:
        can_normalize: the client's plugin makes the custom call.
    """

    can_normalize = False

    def normalize(
        self, b: Builder, x: Value, weight: Value | None, bias: Value | None, how: Norm
    ) -> tuple[Value, Value, Value] | None:
        """See `Kernels.normalize`."""
        takes = (
            self.can_normalize
            and x.dtype in (_FLOAT32, _BFLOAT16)
            and how.dtype in (_FLOAT32, _BFLOAT16)
            and how.rounding in (None, _BFLOAT16)
            and x.size >= LEAST
            and memory_order(x) == tuple(range(x.rank))
        )
        if not takes:
            return None
        kept, inner = x.shape[: x.rank - how.count], x.shape[x.rank - how.count :]
        found = {_sets(how.count, side.shape) for side in (weight, bias) if side}
        if len(found) > 1:
            return None
        sides = next(iter(found), (1, 1))
        rows = b.reshape(x, (math.prod(kept), math.prod(inner)))
        # What is multiplied by 1 and added to -0 stays as it is, in each bit.
        scale, shift = (
            b.full(sides, neutral, _FLOAT32)
            if side is None
            else _narrow_or_wide(b, b.reshape(side, sides))
            for side, neutral in ((weight, 1.0), (bias, -0.0))
        )
        y, mean, rstd = normalize(
            b,
            rows,
            scale,
            shift,
            eps=how.eps,
            dtype=how.dtype,
            centered=how.is_centered,
            rounded=how.rounding is not None,
        )
        return b.reshape(y, x.shape), b.reshape(mean, kept), b.reshape(rstd, kept)


def _sets(count: int, side: Sequence[int]) -> tuple[int, int]:
    """How many sets of weights there are, and how many are in each; see `Kernels.normalize`."""
    first = max(len(side) - count, 0)
    return math.prod(side[:first]), math.prod(side[first:])


def _narrow_or_wide(b: Builder, side: Value) -> Value:
    """A weight or a bias as the call takes it: XLA would start a loop to convert bfloat16."""
    return side if side.dtype == _BFLOAT16 else convert(b, side, _FLOAT32)


def can_normalize(client: Client) -> bool:
    """Register the custom call with a client's plugin; whether it makes the call."""
    return can_call(client, TARGET, "NORMALIZE_ROWS")


def normalize(
    b: Builder,
    x: Value,
    weight: Value,
    bias: Value,
    *,
    eps: float,
    dtype: DType,
    centered: bool,
    rounded: bool = False,
    vectors: int = AVX512,
) -> tuple[Value, Value, Value]:
    """The custom call.

    Args:
        b: the builder to emit into.
        x: (rows, length), float32 or bfloat16.
        weight: (sets, count), float32 or bfloat16. Row r has set r % sets, of which each number is
            for length / count elements side by side.
        bias: the same.
        eps: is added to the variance.
        dtype: of the result, float32 or bfloat16.
        centered: the mean is subtracted; else it is 0.
        rounded: to bfloat16, before the weight is multiplied.
        vectors: the widest that it may use.

    Returns:
        (rows, length), computed in float32 and rounded; mean and reciprocal standard deviation,
        (rows,), float32.
    """
    config: dict[str, Any] = {
        "how": np.array([centered, rounded, vectors], np.int64),
        "eps": np.array([eps], np.float64),
    }
    statistic = TensorType(x.shape[:1], _FLOAT32)
    results = [TensorType(x.shape, dtype), statistic, statistic]
    y, mean, rstd = b.custom_call(TARGET, [x, weight, bias], results, backend_config=config)
    return y, mean, rstd
