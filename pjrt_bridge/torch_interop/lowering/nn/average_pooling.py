"""Average and adaptive average pooling in one to three dimensions, and derivatives.

ATen semantics kept: an average counts padding or not, but never what `ceil_mode` adds beyond it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from pjrt_bridge.stablehlo.builder.builder import Value
from pjrt_bridge.torch_interop.lowering.context import BOOL, Context
from pjrt_bridge.torch_interop.lowering.math.reduction import mean_over
from pjrt_bridge.torch_interop.lowering.nn.pooling_blocks import PoolingBlocks, WindowStep
from pjrt_bridge.torch_interop.lowering.nn.pooling_windows import (
    Windows,
    in_memory,
    over_windows,
    per_dimension,
    windows,
)
from pjrt_bridge.torch_interop.lowering.nn.weighted_windows import WeightedTerms
from pjrt_bridge.torch_interop.lowering.registry import lowering

_MOST_STEPS = 16
"""Windows over one element that are added one by one."""


def _divisors(w: Windows, count_include_pad: bool, divisor: int | None) -> np.ndarray:
    """Elements that each window's average divides by, in the output's spatial shape."""
    counts: np.ndarray = np.ones((), np.float64)
    for d in range(w.count):
        n, p = w.data[d], w.padding[d]
        start = np.arange(w.output[d]) * w.stride[d] - p
        end = np.minimum(start + w.kernel[d], n + p)
        if not count_include_pad:
            start, end = np.maximum(start, 0), np.minimum(end, n)
        counts = counts[..., None] * (end - start)
    return counts if divisor is None else np.full(counts.shape, float(divisor))


def _add_windows(
    c: Context, x: Value, w: Windows, stride: list[int], padding: list[tuple[int, int]]
) -> Value:
    (total,) = c.b.reduce_window(
        [x],
        [c.full((), 0, x.dtype)],
        lambda old, new: c.b.add(old[0], new[0]),
        window_dimensions=per_dimension(x, w, w.kernel, 1),
        window_strides=per_dimension(x, w, stride, 1),
        padding=per_dimension(x, w, padding, (0, 0)),
    )
    return total


def _avg_pool(name: str, count: int) -> None:
    @lowering(f"aten.{name}.default")
    def _lower(
        c: Context,
        x: Value,
        kernel_size: Sequence[int],
        stride: Sequence[int] = (),
        padding: Sequence[int] = (0,),
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> Value:
        """The windows' sums over their divisors."""
        w = windows(x, c.output.shape, kernel_size, stride, padding, count=count)
        turned = in_memory(w, x)
        value = c.widen(turned.into(c, x))
        counted = _divisors(w, count_include_pad, divisor_override)
        divisors = c.b.constant(counted, value.dtype)
        found = c.kernels.average_pool(c.b, value, divisors, turned.windows.pooling)
        if found is None:
            sides = list(zip(w.padding, w.padding_after, strict=True))
            total = _add_windows(c, value, turned.windows, w.stride, sides)
            divisor = over_windows(c, turned.windows, divisors, total.shape)
            found = c.b.divide(total, divisor)
        return c.result(turned.back(c, found))


_avg_pool("avg_pool1d", 1)
_avg_pool("avg_pool2d", 2)
_avg_pool("avg_pool3d", 3)


def _avg_pool_backward(name: str, count: int) -> None:
    @lowering(f"aten.{name}.default")
    def _lower(
        c: Context,
        grad: Value,
        x: Value,
        kernel_size: Sequence[int],
        stride: Sequence[int],
        padding: Sequence[int],
        ceil_mode: bool,
        count_include_pad: bool,
        divisor_override: int | None,
    ) -> Value:
        """Each gradient over its divisor, at every place of its window, summed."""
        b = c.b
        w = windows(x, grad.shape, kernel_size, stride, padding, count=count)
        turned = in_memory(w, grad, x)
        w, incoming = turned.windows, c.widen(turned.into(c, grad))
        divisors = b.constant(_divisors(w, count_include_pad, divisor_override), incoming.dtype)
        part = b.divide(incoming, over_windows(c, w, divisors, incoming.shape))
        blocks = PoolingBlocks(c, w, turned.shape(x.shape))
        if len(blocks.steps()) <= _MOST_STEPS:
            return c.result(turned.back(c, _add_steps(c, blocks, part)))
        spaced = b.pad(
            part,
            c.full((), 0, part.dtype),
            [0] * x.rank,
            [0] * x.rank,
            per_dimension(x, w, [s - 1 for s in w.stride], 0),
        )
        sides = []
        for d, axis in enumerate(w.axes):
            before = w.kernel[d] - 1 - w.padding[d]
            sides.append((before, w.data[d] + w.kernel[d] - 1 - before - spaced.shape[axis]))
        return c.result(turned.back(c, _add_windows(c, spaced, w, [1] * w.count, sides)))


def _add_steps(c: Context, blocks: PoolingBlocks, part: Value) -> Value:
    """The sum of each element's windows."""
    given = blocks.padded(part, c.full((), 0, part.dtype))
    zero = c.full(blocks.shape, 0, part.dtype)

    def of_step(step: WindowStep) -> Value:
        found, covered = blocks.at(given, step), blocks.covered(step)
        if covered.all():
            return found
        return c.b.select(blocks.spread(c.b.constant(covered, BOOL)), found, zero)

    return blocks.total(of_step)


_avg_pool_backward("avg_pool2d_backward", 2)
_avg_pool_backward("avg_pool3d_backward", 3)


def _adaptive(name: str, count: int) -> None:
    @lowering(f"aten.{name}.default")
    def _lower(c: Context, x: Value, output_size: Sequence[int]) -> Value:
        """Averages over a given number of nearly equal windows per dimension."""
        value = c.widen(x)
        for d in range(x.rank - count, x.rank):
            value = _adaptive_mean(c, value, d, c.output.shape[d])
        return c.result(value)


_adaptive("adaptive_avg_pool1d", 1)
_adaptive("_adaptive_avg_pool2d", 2)
_adaptive("_adaptive_avg_pool3d", 3)


def _adaptive_mean(c: Context, x: Value, dim: int, count: int) -> Value:
    size = x.shape[dim]
    if count and size % count == 0:
        split = c.reshape(x, (*x.shape[:dim], count, size // count, *x.shape[dim + 1 :]))
        return mean_over(c, split, (dim + 1,))
    return WeightedTerms.of_matrix(_averaging_matrix(size, count)).sums(c, x, dim)


def _averaging_matrix(size: int, count: int) -> np.ndarray:
    """(size, count): the weight of each element in each adaptive average."""
    matrix = np.zeros((size, count))
    for i in range(count):
        start, end = i * size // count, math.ceil((i + 1) * size / count)
        matrix[start:end, i] = 1 / (end - start)
    return matrix


def _adaptive_backward(name: str, count: int) -> None:
    @lowering(f"aten.{name}.default")
    def _lower(c: Context, grad: Value, x: Value) -> Value:
        """Each gradient divided equally among the elements of its window."""
        value = c.widen(grad)
        for d in range(x.rank - count, x.rank):
            value = _adaptive_gradient(c, value, d, x.shape[d])
        return c.result(value)


_adaptive_backward("_adaptive_avg_pool2d_backward", 2)
_adaptive_backward("_adaptive_avg_pool3d_backward", 3)


def _adaptive_gradient(c: Context, grad: Value, dim: int, size: int) -> Value:
    count = grad.shape[dim]
    if size % count:
        return WeightedTerms.of_matrix(_averaging_matrix(size, count).T).sums(c, grad, dim)
    part = c.b.divide(grad, c.full(grad.shape, size // count, grad.dtype))
    split = (*grad.shape[: dim + 1], size // count, *grad.shape[dim + 1 :])
    joined = (*grad.shape[:dim], size, *grad.shape[dim + 1 :])
    return c.reshape(c.spread(part, split, (dim + 1,)), joined)
