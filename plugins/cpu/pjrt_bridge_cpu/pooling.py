"""Pooling by maxima and averages, by calls (`aten/native/pool.c`).

XLA's CPU compiler pads the planes in a loop of its own, and makes loops of the comparisons that a
thread has to be woken for. The calls go along what lies side by side in memory, channels or a row.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from pjrt_bridge import dtypes
from pjrt_bridge.dtypes import DType
from pjrt_bridge.runtime import Client
from pjrt_bridge.stablehlo import Builder, TensorType, Value
from pjrt_bridge.stablehlo.kernel_attributes import Pooling
from pjrt_bridge.stablehlo.kernels import Kernels, convert
from pjrt_bridge_cpu.aten.library import can_call

MAXIMA, POSITIONS, GRADIENTS, AVERAGES = (
    f"pjrt_bridge.pool_{what}.1" for what in ("maxima", "positions", "gradients", "averages")
)
"""Names of the custom calls. Their number changes with what they are given."""

LEAST = 1 << 9
"""Elements of the planes from which on it is worth a call."""

_FLOAT32, _INT64 = map(dtypes.of, ("float32", "int64"))

_MOST = (1 << 15) - 1
"""The largest number of a window."""


class PooledWindows(Kernels):
    """Maxima of windows in two neighbouring dimensions, their gradients, and averages.

    Attributes:
        can_pool: the client's plugin makes the custom calls.
    """

    can_pool = False

    def max_pool(self, b: Builder, x: Value, how: Pooling) -> tuple[Value, Value] | None:
        """See `Kernels.max_pool`."""
        if not self._takes(x, x.shape, how):
            return None
        pooled = _pooled(x.shape, how)
        planes = b.reshape(x, _in_four(x.shape, how))
        # Compilers drop the one that nothing reads.
        maxima = _call(b, MAXIMA, [planes], how.sizes, _FLOAT32, how)
        positions = _call(b, POSITIONS, [planes], how.sizes, _INT64, how)
        return b.reshape(maxima, pooled), b.reshape(positions, pooled)

    def average_pool(self, b: Builder, x: Value, divisors: Value, how: Pooling) -> Value | None:
        """See `Kernels.average_pool`."""
        if not self._takes(x, x.shape, how):
            return None
        planes = b.reshape(x, _in_four(x.shape, how))
        averages = _call(b, AVERAGES, [planes, divisors], how.sizes, _FLOAT32, how)
        return b.reshape(averages, _pooled(x.shape, how))

    def max_pool_gradient(
        self, b: Builder, grad: Value, positions: Value, shape: Sequence[int], how: Pooling
    ) -> Value | None:
        """See `Kernels.max_pool_gradient`."""
        if not self._takes(grad, shape, how):
            return None
        windows = _in_four(grad.shape, how)
        given = [b.reshape(grad, windows), b.reshape(convert(b, positions, _INT64), windows)]
        sizes = [shape[axis] for axis in how.axes]
        return b.reshape(_call(b, GRADIENTS, given, sizes, _FLOAT32, how), shape)

    def _takes(self, x: Value, shape: Sequence[int], how: Pooling) -> bool:
        """Whether the calls take a value for planes of a shape, and are worth it."""
        return self.can_pool and x.dtype == _FLOAT32 and _fits(shape, how)


def _fits(shape: Sequence[int], how: Pooling) -> bool:
    numbers = (*how.window, *how.strides, *how.dilation)
    return (
        len(how.axes) == 2
        and how.axes[1] == how.axes[0] + 1
        and math.prod(shape) >= LEAST
        and math.prod(shape[axis] for axis in how.axes) < 1 << 31
        and all(0 < number <= _MOST for number in numbers)
        and all(0 <= number <= _MOST for number in how.padding)
        and math.prod(how.sizes) > 0
    )


def _pooled(shape: Sequence[int], how: Pooling) -> list[int]:
    """The shape that windows have."""
    sizes = dict(zip(how.axes, how.sizes, strict=True))
    return [sizes.get(dim, size) for dim, size in enumerate(shape)]


def _in_four(shape: Sequence[int], how: Pooling) -> tuple[int, int, int, int]:
    """A shape with what is before the windows' dimensions in one, and what is behind."""
    first, second = how.axes
    before, behind = math.prod(shape[:first]), math.prod(shape[second + 1 :])
    return before, shape[first], shape[second], behind


def can_pool(client: Client) -> bool:
    """Register the custom calls with a client's plugin; whether it makes them."""
    targets = {
        MAXIMA: "MAXIMA",
        POSITIONS: "POSITIONS",
        GRADIENTS: "GRADIENTS",
        AVERAGES: "AVERAGES",
    }
    return all(can_call(client, target, f"POOL_{name}") for target, name in targets.items())


def _call(
    b: Builder,
    target: str,
    operands: Sequence[Value],
    sizes: Sequence[int],
    dtype: DType,
    how: Pooling,
) -> Value:
    """A custom call, of whose result the windows' dimensions have these sizes."""
    before, _, _, behind = operands[0].shape
    numbers = [*how.window, *how.strides, *how.padding, *how.dilation]
    config: dict[str, Any] = {"window": np.array(numbers, np.int64)}
    result = TensorType((before, *sizes, behind), dtype)
    return b.custom_call(target, operands, [result], backend_config=config)[0]
