"""Depthwise convolutions as sums of shifted arrays, one for each element of the kernel.

They are those that `depthwise_calls` has no call for: of other element types or three dimensions,
of which a channel has several results, or where the plugin makes no custom calls.

XLA's CPU compiler and oneDNN compute convolutions as products of matrices, which a convolution of
each channel by itself is not. A sum of shifted arrays is one vectorized loop over the result.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from functools import reduce

import numpy as np

from pjrt_bridge.dtypes import DType
from pjrt_bridge.stablehlo import Builder, Value
from pjrt_bridge.stablehlo.kernel_attributes import Convolution
from pjrt_bridge.stablehlo.kernels import Kernels, convert

_MOST = 64
"""Elements of a kernel; the loop has code for each."""

_FORWARD = (("NC", "OI", "NC"), ("NC", "IO", "NC"))
_GRADIENT = ("CN", "IO", "NC")
"""The letters of channels and batches in a convolution, and in the gradient of its weight."""


def is_depthwise(channels: int, weight: Value, groups: int) -> bool:
    """Whether a convolution of data with so many channels is written as a sum."""
    return 1 < channels == groups and _few(weight.shape[2:])


class DepthwiseSums(Kernels):
    """Depthwise convolutions, and gradients of their weights."""

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
        letters = tuple(part[:2] for part in how.dimension_numbers)
        sizes = result_sizes(x.shape[2:], weight.shape[2:], how)
        groups = (how.feature_group_count, how.batch_group_count)
        channels = x.shape[1]
        typed = x.dtype == weight.dtype and x.dtype.is_float
        total = None
        if typed and channels > 1 and x.size * weight.size * math.prod(list(sizes)) > 0:
            if letters in _FORWARD and groups[1] == 1 and is_depthwise(channels, weight, groups[0]):
                total = self._correlation(b, x, weight, how, sizes, accumulator)
            elif letters == _GRADIENT and groups == (1, channels) and _few(sizes):
                total = self._gradient(b, x, weight, how, sizes, accumulator)
        if total is not None:
            return convert(b, total, dtype)
        return super().convolution(b, x, weight, how, accumulator=accumulator, dtype=dtype)

    def _correlation(
        self,
        b: Builder,
        x: Value,
        weight: Value,
        how: Convolution,
        sizes: Sequence[int],
        accumulator: DType,
    ) -> Value:
        """(N, C, ...) with (O, 1, ...) or (1, O, ...), of which each channel has O / C."""
        kernel = weight.shape[2:]
        channels = weight.size // math.prod(kernel)
        flat = b.reshape(weight, (channels, *kernel))
        padded = _repeated(b, self._padded(b, x, how), channels)
        terms = []
        for tap in _indices(kernel):
            at = [index * step for index, step in zip(tap, how.rhs_dilation, strict=True)]
            part = _shifted(b, padded, sizes, at, how.window_strides)
            ends = [index + 1 for index in tap]
            factor = b.reshape(b.slice(flat, (0, *tap), (channels, *ends)), (channels,))
            spread = b.broadcast_in_dim(convert(b, factor, accumulator), part.shape, (1,))
            terms.append(b.multiply(convert(b, part, accumulator), spread))
        return reduce(b.add, terms)

    def _gradient(
        self,
        b: Builder,
        x: Value,
        grad: Value,
        how: Convolution,
        sizes: Sequence[int],
        accumulator: DType,
    ) -> Value:
        """(1, O, *sizes): for each element of a kernel the sum of (N, C, ...) times (N, O, ...)."""
        channels = grad.shape[1]
        padded = _repeated(b, self._padded(b, x, how), channels)
        others = (0, *range(2, grad.rank))
        sums = []
        for tap in _indices(sizes):
            at = [index * stride for index, stride in zip(tap, how.window_strides, strict=True)]
            part = _shifted(b, padded, grad.shape[2:], at, how.rhs_dilation)
            product = b.multiply(convert(b, part, accumulator), convert(b, grad, accumulator))
            sums.append(b.reshape(self.reduce(b, "sum", product, others), (channels, 1)))
        return b.reshape(b.concatenate(sums, 1), (1, channels, *sizes))

    def _padded(self, b: Builder, x: Value, how: Convolution) -> Value:
        low, high = zip(*how.padding, strict=True)
        inner = [step - 1 for step in how.lhs_dilation]
        if not any((*low, *high, *inner)):
            return x
        zero = b.constant(np.zeros((), x.dtype.numpy))
        return self.materialize(b, b.pad(x, zero, (0, 0, *low), (0, 0, *high), (0, 0, *inner)))


def result_sizes(sizes: Sequence[int], kernel: Sequence[int], how: Convolution) -> tuple[int, ...]:
    """Sizes of the result along the dimensions in which the data and the kernel have these."""
    return tuple(
        max((low + (size - 1) * inner + 1 + high - (taps - 1) * step - 1) // stride + 1, 0)
        for size, taps, stride, (low, high), inner, step in zip(
            sizes,
            kernel,
            how.window_strides,
            how.padding,
            how.lhs_dilation,
            how.rhs_dilation,
            strict=True,
        )
    )


def _shifted(
    b: Builder, padded: Value, sizes: Sequence[int], at: Sequence[int], steps: Sequence[int]
) -> Value:
    """The strided slice of `sizes` elements from `at` on, with strides `steps`."""
    batch, channels = padded.shape[:2]
    limits = [first + (n - 1) * step + 1 for first, n, step in zip(at, sizes, steps, strict=True)]
    return b.slice(padded, (0, 0, *at), (batch, channels, *limits), (1, 1, *steps))


def _repeated(b: Builder, x: Value, channels: int) -> Value:
    """Each channel repeated, to so many channels."""
    batch, own, *sizes = x.shape
    if own == channels:
        return x
    shape = (batch, own, channels // own, *sizes)
    kept = (0, 1, *range(3, len(shape)))
    return b.reshape(b.broadcast_in_dim(x, shape, kept), (batch, channels, *sizes))


def _few(kernel: Sequence[int]) -> bool:
    return math.prod(kernel) <= _MOST


def _indices(sizes: Sequence[int]) -> Iterator[tuple[int, ...]]:
    return itertools.product(*map(range, sizes))
