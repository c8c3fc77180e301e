"""The windows of pooling operators.

Inputs are (batch, channels, *spatial) or (channels, *spatial).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from pjrt_bridge.stablehlo.builder.builder import Value
from pjrt_bridge.torch_interop.lowering.context import per_axis


@dataclass(frozen=True)
class Windows:
    """Pooling windows per spatial dimension: sizes of the data and of the output, parameters."""

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
        x.shape[-count:],
        tuple(output[-count:]),
        sizes,
        per_axis(stride, count) if stride else sizes,
        per_axis(padding, count),
        per_axis(dilation, count),
    )


def per_dimension(x: Value, spatial: Sequence[int], other: int) -> list[int]:
    """Numbers of the spatial dimensions, with another one for the dimensions before them."""
    return [other] * (x.rank - len(spatial)) + list(spatial)
