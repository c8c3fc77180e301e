"""Derivatives of pooling: what each element of the data gets from the windows over it.

The data is seen as blocks as long as the strides. The windows that cover elements of a block are a
few steps from the block's own number, the same few for all blocks. So the sum over them is one of a
few shifted arrays, which compilers vectorize; the usual way, a window over gradients with zeros
between them, reads as many zeros for each.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from functools import reduce

import numpy as np

from pjrt_bridge.stablehlo.builder.builder import Value
from pjrt_bridge.torch_interop.lowering.context import Context
from pjrt_bridge.torch_interop.lowering.nn.pooling_windows import Windows, per_dimension

WindowStep = tuple[int, ...]
"""How far from a block's number that of a window is, per dimension."""


class PoolingBlocks:
    """The elements of the data, in blocks.

    Args:
        c: of the operator.
        w: the windows.
        sizes: of the data.

    Attributes:
        counts: of blocks, per spatial dimension.
        shape: of the data, with the blocks and the elements in one for each spatial dimension.
    """

    def __init__(self, c: Context, w: Windows, sizes: Sequence[int]) -> None:
        self._c = c
        self._w = w
        self._sizes = tuple(sizes)
        self._steps = list(map(_steps, w.stride, w.padding, w.kernel, w.dilation))
        self.counts = [-(-n // s) for n, s in zip(w.data, w.stride, strict=True)]
        split: list[tuple[int, ...]] = [(n,) for n in sizes]
        for axis, count, stride in zip(w.axes, self.counts, w.stride, strict=True):
            split[axis] = (count, stride)
        self.shape = tuple(itertools.chain(*split))
        # Where each dimension of the data begins in `shape`.
        self._dims = list(itertools.accumulate(map(len, split[:-1]), initial=0))

    def steps(self) -> list[WindowStep]:
        """Those of all windows that cover elements of a block, row-major."""
        return list(itertools.product(*self._steps))

    def padded(self, x: Value, fill: Value) -> Value:
        """A value of each window, with others before and behind them that stand for no window."""
        if not any(self._before) and not any(self._after):
            return x
        low = per_dimension(x, self._w, self._before, 0)
        high = per_dimension(x, self._w, self._after, 0)
        return self._c.kernels.materialize(self._c.b, self._c.b.pad(x, fill, low, high))

    def at(self, x: Value, step: WindowStep) -> Value:
        """For each element what `padded` gave of the window that is a step from its block."""
        start, limit = [0] * x.rank, list(x.shape)
        for axis, at, n, count in zip(self._w.axes, step, self._before, self.counts, strict=True):
            start[axis], limit[axis] = at + n, at + n + count
        part = self._c.b.slice(x, start, limit)
        return self._c.b.broadcast_in_dim(part, self.shape, self._dims)

    def spread(self, numbers: Value) -> Value:
        """Numbers of a block's elements, or of all: two dimensions for each spatial one."""
        dims = [self._dims[axis] + more for axis in self._w.axes for more in (0, 1)]
        return self._c.b.broadcast_in_dim(numbers, self.shape, dims)

    def total(self, of_step: Callable[[WindowStep], Value]) -> Value:
        """The sum over all steps, in the shape of the data."""
        b, sizes = self._c.b, list(self._sizes)
        for axis, count, stride in zip(self._w.axes, self.counts, self._w.stride, strict=True):
            sizes[axis] = count * stride
        total = reduce(b.add, map(of_step, self.steps()))
        return b.slice(b.reshape(total, sizes), [0] * len(sizes), self._sizes)

    def positions(self) -> np.ndarray:
        """Plane position of each element; in the last blocks some are behind the data."""
        flat: np.ndarray = np.zeros((), np.int32)
        for n, s, size in zip(self.counts, self._w.stride, self._w.data, strict=True):
            flat = flat[..., None, None] * size + np.arange(n * s).reshape(n, s)
        return np.asarray(flat, np.int32)

    def covered(self, step: WindowStep) -> np.ndarray:
        """Which elements of a block the window covers that is a step from it; without dilation."""
        found: np.ndarray = np.ones((), bool)
        for at, k, s, p in zip(step, self._w.kernel, self._w.stride, self._w.padding, strict=True):
            place = np.arange(s) + p - at * s
            found = found[..., None, None] & ((place >= 0) & (place < k))
        return found

    @property
    def _before(self) -> list[int]:
        return [max(0, -step[0]) for step in self._steps]

    @property
    def _after(self) -> list[int]:
        return [
            max(0, n + step[-1] - o)
            for n, step, o in zip(self.counts, self._steps, self._w.output, strict=True)
        ]


def _steps(stride: int, padding: int, kernel: int, dilation: int) -> range:
    first = -((dilation * (kernel - 1) - padding) // stride)
    return range(first, (stride - 1 + padding) // stride + 1)
