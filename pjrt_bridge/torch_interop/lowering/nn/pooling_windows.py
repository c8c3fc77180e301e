"""The windows of pooling operators.

Inputs are (batch, channels, *spatial) or (channels, *spatial). They are pooled with their
dimensions in the order in which they lie in memory (`Turned`), so that none are turned for it.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from pjrt_bridge.stablehlo.builder.builder import Value
from pjrt_bridge.stablehlo.builder.orders import Order, inverse_order, memory_order
from pjrt_bridge.stablehlo.kernel_attributes import Pooling
from pjrt_bridge.torch_interop.lowering.context import Context, per_axis

_T = TypeVar("_T")


@dataclass(frozen=True)
class Windows:
    """Pooling windows per spatial dimension: sizes of the data and of the output, parameters.

    `axes` are the spatial dimensions of a value that is pooled, or was.
    """

    axes: tuple[int, ...]
    data: tuple[int, ...]
    output: tuple[int, ...]
    kernel: list[int]
    stride: list[int]
    padding: list[int]
    dilation: list[int]

    @property
    def count(self) -> int:
        """Number of spatial dimensions."""
        return len(self.kernel)

    @property
    def padding_after(self) -> list[int]:
        """Padding behind the data up to the end of the last window; negative if it ends before."""
        return [
            (o - 1) * s + (k - 1) * d + 1 - n - p
            for o, s, k, d, n, p in zip(
                self.output,
                self.stride,
                self.kernel,
                self.dilation,
                self.data,
                self.padding,
                strict=True,
            )
        ]

    @property
    def pooling(self) -> Pooling:
        """The same for a kernel."""
        return Pooling(
            self.axes, self.output, self.kernel, self.stride, self.padding, self.dilation
        )

    def places(self) -> list[tuple[int, ...]]:
        """Offset of each place of the window from its start, row-major."""
        steps = (range(0, k * d, d) for k, d in zip(self.kernel, self.dilation, strict=True))
        return list(itertools.product(*steps))


def windows(
    x: Value,
    output: Sequence[int],
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int] = (1,),
    *,
    count: int,
) -> Windows:
    """The windows over the last `count` dimensions of `x`, of an operator's arguments."""
    sizes = per_axis(kernel, count)
    return Windows(
        tuple(range(x.rank - count, x.rank)),
        x.shape[-count:],
        tuple(output[-count:]),
        sizes,
        per_axis(stride, count) if stride else sizes,
        per_axis(padding, count),
        per_axis(dilation, count),
    )


@dataclass(frozen=True)
class Turned:
    """An order of dimensions, and the windows over values that are in it.

    Attributes:
        order: of the dimensions of the operator's arguments.
        windows: their `axes` are those of values in this order.
    """

    order: Order
    windows: Windows

    def into(self, c: Context, x: Value) -> Value:
        """A value whose dimensions are put into this order."""
        return x if self._is_plain else c.b.transpose(x, self.order)

    def back(self, c: Context, x: Value) -> Value:
        """The operator's result, of a value in this order."""
        return x if self._is_plain else c.b.transpose(x, inverse_order(self.order))

    def shape(self, sizes: Sequence[int]) -> tuple[int, ...]:
        """Sizes in this order."""
        return tuple(sizes[dim] for dim in self.order)

    @property
    def _is_plain(self) -> bool:
        return self.order == tuple(range(len(self.order)))


def in_memory(w: Windows, *values: Value) -> Turned:
    """The order in which the first of some values lies that does not lie row-major."""
    order: Order = tuple(range(values[0].rank))
    order = next((found for found in map(memory_order, values) if found != order), order)
    return Turned(order, replace(w, axes=tuple(order.index(axis) for axis in w.axes)))


def per_dimension(x: Value, w: Windows, spatial: Sequence[_T], other: _T) -> list[_T]:
    """What is of the spatial dimensions of `x`, with something else for its other dimensions."""
    found = [other] * x.rank
    for axis, one in zip(w.axes, spatial, strict=True):
        found[axis] = one
    return found


def over_windows(c: Context, w: Windows, numbers: Value, shape: Sequence[int]) -> Value:
    """A number of each window, of the output's spatial shape, for all values of a shape."""
    return c.b.broadcast_in_dim(numbers, tuple(shape), w.axes)
