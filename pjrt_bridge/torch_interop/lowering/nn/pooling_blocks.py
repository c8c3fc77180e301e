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
from pjrt_bridge.torch_interop.lowering.nn.pooling_windows import Windows

WindowStep = tuple[int, ...]
"""How far from a block's number that of a window is, per dimension."""


class PoolingBlocks:
    """The elements of the data, in blocks.

    Args:
        c: of the operator.
        w: the windows.
        lead: the sizes of the dimensions before the spatial ones.

    Attributes:
        counts: of blocks, per dimension.
        shape: `lead`, then for each dimension the blocks and the elements in one.
    """

    def __init__(self, c: Context, w: Windows, lead: Sequence[int]) -> None:
        self._c = c
        self._w = w
        self._lead = tuple(lead)
        self._steps = list(map(_steps, w.stride, w.padding, w.kernel, w.dilation))
        self.counts = [-(-n // s) for n, s in zip(w.data, w.stride, strict=True)]
        self.shape = (*lead, *itertools.chain(*zip(self.counts, w.stride, strict=True)))

    def steps(self) -> list[WindowStep]:
        """Those of all windows that cover elements of a block, row-major."""
        return list(itertools.product(*self._steps))

    def padded(self, x: Value, fill: Value) -> Value:
        """A value of each window, with others before and behind them that stand for no window."""
        zeros = [0] * len(self._lead)
        low, high = zeros + self._before, zeros + self._after
        if not any(low) and not any(high):
            return x
        return self._c.kernels.materialize(self._c.b, self._c.b.pad(x, fill, low, high))

    def at(self, x: Value, step: WindowStep) -> Value:
        """For each element what `padded` gave of the window that is a step from its block."""
        first = [at + n for at, n in zip(step, self._before, strict=True)]
        end = [at + n for at, n in zip(first, self.counts, strict=True)]
        zeros, lead = [0] * len(self._lead), len(self._lead)
        part = self._c.b.slice(x, [*zeros, *first], [*self._lead, *end], [1] * x.rank)
        dims = (*range(lead), *range(lead, len(self.shape), 2))
        return self._c.b.broadcast_in_dim(part, self.shape, dims)

    def total(self, of_step: Callable[[WindowStep], Value]) -> Value:
        """The sum over all steps, in the shape of the data."""
        b, sizes = self._c.b, [n * s for n, s in zip(self.counts, self._w.stride, strict=True)]
        total = reduce(b.add, map(of_step, self.steps()))
        whole = b.reshape(total, (*self._lead, *sizes))
        ends = [*self._lead, *self._w.data]
        return b.slice(whole, [0] * whole.rank, ends, [1] * whole.rank)

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
