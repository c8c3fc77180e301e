"""Depthwise convolutions, and gradients of their weights, by a call (`aten/native/depthwise.c`).

XLA's CPU compiler has no loop for them, and a sum of shifted arrays (`depthwise`) reads all data
for each element of the weights. The call reads data in the order that it has in memory.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from pjrt_bridge.dtypes import DType
from pjrt_bridge.runtime import Client
from pjrt_bridge.stablehlo import Builder, TensorType, Value, inverse_order, memory_order
from pjrt_bridge.stablehlo.kernel_attributes import Convolution
from pjrt_bridge.stablehlo.kernels import Kernels
from pjrt_bridge_cpu.aten.library import can_call
from pjrt_bridge_cpu.convolution_windows import DTYPES, MOST_TAPS, pairs, turned, turned_back
from pjrt_bridge_cpu.depthwise import result_sizes

TARGET = "pjrt_bridge.depthwise.1"
"""Name of the custom call. Its number changes with what it is given."""

LEAST = 1 << 13
"""Products from which on it is worth a call."""

_FORWARD = ("NC", "OI", "NC")
_GRADIENT = ("CN", "IO", "NC")
"""The letters of batches and channels in a convolution, and in the gradient of its weight."""


class CalledDepthwise(Kernels):
    """Depthwise convolutions of one or two dimensions, each channel of which has one result.

    Attributes:
        can_convolve: the client's plugin makes the custom call.
    """

    can_convolve = False

    def convolves(self, channels: int, weight: Value, groups: int) -> bool:
        """Whether a convolution of data with so many channels is a call."""
        return (
            self.can_convolve
            and 1 < channels == groups == weight.shape[0]
            and weight.rank in (3, 4)
            and 0 < math.prod(weight.shape[2:]) <= MOST_TAPS
            and str(weight.dtype) in DTYPES
        )

    def convolution(
        self,
        b: Builder,
        x: Value,
        weight: Value,
        how: Convolution,
        *,
        accumulator: DType,
        dtype: DType,
    ) -> Value:
        """See `Kernels.convolution`."""
        is_gradient = how.batch_group_count > 1
        channels = x.shape[how.dimension_numbers[0].index("N" if is_gradient else "C")]
        groups = how.batch_group_count if is_gradient else how.feature_group_count
        if self.can_convolve and x.rank in (3, 4) and 1 < channels == groups:
            made = _called(b, x, weight, how, dtype, is_gradient=is_gradient)
            if made is not None:
                return made
        return super().convolution(b, x, weight, how, accumulator=accumulator, dtype=dtype)


def can_convolve(client: Client) -> bool:
    """Register the custom call with a client's plugin; whether it makes the call."""
    return can_call(client, TARGET, "CONVOLVE_DEPTHWISE")


def _called(
    b: Builder, x: Value, other: Value, how: Convolution, dtype: DType, *, is_gradient: bool
) -> Value | None:
    """The call, for data of any order of dimensions; None where it is not for this convolution."""
    firsts = _GRADIENT if is_gradient else _FORWARD
    left, right, given = how.dimension_numbers
    sides = (turned(b, x, left, firsts[0]), turned(b, other, right, firsts[1]))
    made = _in_order(b, *sides, how, dtype, is_gradient=is_gradient)
    return None if made is None else turned_back(b, made, given, firsts[2])


def _in_order(
    b: Builder, x: Value, other: Value, how: Convolution, dtype: DType, *, is_gradient: bool
) -> Value | None:
    """The call, for batches, channels and places in this order; None where it is not for it."""
    sizes, channels = result_sizes(x.shape[2:], other.shape[2:], how), x.shape[1]
    if (
        any(str(item) not in DTYPES for item in (x.dtype, other.dtype, dtype))
        or x.dtype != other.dtype
        or min(*x.shape, *other.shape, *sizes) < 1
    ):
        return None
    if is_gradient:
        fits = other.shape[1] == channels and how.feature_group_count == 1
        fits = fits and set(how.lhs_dilation) == {1}
        taps, result = sizes, other.shape[2:]
    else:
        fits = other.shape[:2] == (channels, 1)
        taps, result = other.shape[2:], sizes
    products = x.shape[0] * channels * math.prod(result) * math.prod(taps)
    if not fits or math.prod(taps) > MOST_TAPS or products < LEAST:
        return None
    return _call(b, x, other, how, dtype, taps=taps, result=result, is_gradient=is_gradient)


def _call(
    b: Builder,
    x: Value,
    other: Value,
    how: Convolution,
    dtype: DType,
    *,
    taps: Sequence[int],
    result: Sequence[int],
    is_gradient: bool,
) -> Value:
    """The custom call of a convolution or a gradient, on data in the order that it has in memory.

    Args:
        b: the builder to emit into.
        x: (batches, channels, ...), the data.
        other: the weights; of a gradient (batches, channels, ...), that of the result.
        how: the convolution.
        dtype: of the result.
        taps: sizes of the weights.
        result: of the result, or of its gradient.
        is_gradient: the weights' gradient is computed.
    """
    last = (0, *range(2, x.rank), 1)
    is_last = last in map(memory_order, (x, other) if is_gradient else (x,))
    # The gradient's convolution has the result's gradient for a kernel: distances change places.
    strides, steps = how.window_strides, how.rhs_dilation
    if is_gradient:
        strides, steps = steps, strides
    window = [int(is_gradient), int(is_last), x.shape[0], x.shape[1]]
    window += pairs(x.shape[2:], result, taps, strides, how.lhs_dilation, steps, how.padding)
    config = {"window": np.array(window, np.int64)}
    operands = [x, other]
    if is_last:
        operands[0] = b.transpose(x, last)
        if is_gradient:
            operands[1] = b.transpose(other, last)
    channels = x.shape[1]
    if is_gradient:
        shape = (1, channels, *taps)
        (made,) = b.custom_call(
            TARGET, operands, [TensorType((channels, *taps), dtype)], backend_config=config
        )
        return b.reshape(made, shape)
    shape = (x.shape[0], *result, channels) if is_last else (x.shape[0], channels, *result)
    (made,) = b.custom_call(TARGET, operands, [TensorType(shape, dtype)], backend_config=config)
    return b.transpose(made, inverse_order(last)) if is_last else made
