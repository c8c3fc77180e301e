"""Linear and cubic interpolation of lines, images and volumes, and its gradients.

ATen semantics kept: an element is the weighted sum of two or four neighbours along each dimension,
and all are read where a weight is 0, so that infinities give NaN. Half precision is weighed in
float32, by weights that are rounded to it along one and three dimensions
(ATen/native/cpu/UpSampleKernel.cpp). Dimensions are resized one after the other, those first that
become shortest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pjrt_bridge.stablehlo.builder.builder import Value
from pjrt_bridge.torch_interop.lowering.context import Context
from pjrt_bridge.torch_interop.lowering.nn.weighted_windows import WeightedTerms, scale_of
from pjrt_bridge.torch_interop.lowering.registry import NotLowerable, lowering


@dataclass(frozen=True)
class _Resizing:
    """How a dimension is resized.

    Attributes:
        size: of the dimension.
        count: what it is resized to.
        align_corners: the first and the last elements stay where they are.
        scale: by which it is resized, where the caller has said so.
        dtype: that places are computed in.
        rounded: the type that weights are rounded to.
    """

    size: int
    count: int
    align_corners: bool
    scale: float | None
    dtype: np.dtype[Any]
    rounded: np.dtype[Any]

    def linear(self) -> WeightedTerms:
        """Two terms for each element."""
        index = np.arange(self.count)
        if self.size == self.count:
            # Whatever the scale is.
            return self._rounded([index, index], np.zeros(self.count, self.dtype))
        source = np.maximum(self._sources(), self.dtype.type(0))
        first = np.minimum(source.astype(np.int64), self.size - 1)
        second = np.minimum(first + 1, self.size - 1)
        near = np.clip(source - first.astype(self.dtype), 0, 1).astype(self.dtype)
        return self._rounded([first, second], near)

    def cubic(self) -> WeightedTerms:
        """Four terms for each element, by Keys' cubic with a = -3/4."""
        source = self._sources()
        first = np.minimum(np.floor(source).astype(np.int64), self.size - 1)
        by = np.clip(source - first.astype(self.dtype), 0, 1).astype(self.dtype)
        places = [np.clip(first + step, 0, self.size - 1) for step in (-1, 0, 1, 2)]
        one = np.ones_like(by)
        weights = [_far(one + by), _near(by), _near(one - by), _far(one + one - by)]
        return WeightedTerms(np.stack(places, 1), np.stack(weights, 1))

    def _sources(self) -> np.ndarray:
        """Where each element is among those there are."""
        place, real = np.arange(self.count).astype(self.dtype), self.dtype.type
        step = scale_of(self.size, self.count, self.align_corners, self.scale)
        shift = 0.0 if self.align_corners else 0.5
        found: np.ndarray = (place + real(shift)) * real(step) - real(shift)
        return found

    def _rounded(self, places: Sequence[np.ndarray], near: np.ndarray) -> WeightedTerms:
        near = near.astype(self.rounded)
        far = (np.ones_like(near) - near).astype(self.rounded)
        return WeightedTerms(np.stack(places, 1), np.stack([far, near], 1).astype(self.dtype))


def _near(distance: np.ndarray) -> np.ndarray:
    weight: np.ndarray = (1.25 * distance - 2.25) * distance * distance + 1
    return weight


def _far(distance: np.ndarray) -> np.ndarray:
    weight: np.ndarray = ((-0.75 * distance + 3.75) * distance - 6) * distance + 3
    return weight


def _resized(
    c: Context,
    x: Value,
    sizes: Sequence[int],
    counts: Sequence[int],
    align_corners: bool,
    scales: Sequence[float | None],
    weigh: Callable[[_Resizing], WeightedTerms],
    *,
    back: bool,
) -> Value:
    """`x` resized from `sizes` to `counts`, or gradients the other way."""
    if not x.dtype.is_float:
        raise NotLowerable(f"interpolation of {x.dtype}")
    value = c.widen(x)
    real = value.dtype.numpy
    rounded = x.dtype.numpy if len(sizes) != 2 else real
    ways = []
    for dim, (size, count) in enumerate(zip(sizes, counts, strict=True)):
        weights = weigh(_Resizing(size, count, align_corners, scales[dim], real, rounded))
        ways.append((dim, weights.turned(size) if back else weights, size / count))
    for dim, weights, _ in sorted(ways, key=lambda way: (-way[2] if not back else way[2], -way[0])):
        value = weights.sums(c, value, dim + 2)
    return c.result(value)


def _resize(name: str, rank: int, weigh: Callable[[_Resizing], WeightedTerms]) -> None:
    @lowering(f"aten.{name}.default")
    def _lower(
        c: Context,
        x: Value,
        output_size: Sequence[int],
        align_corners: bool,
        *scales: float | None,
    ) -> Value:
        """(batch, channels, *sizes) resized."""
        given = (*scales, *[None] * (rank - len(scales)))
        return _resized(c, x, x.shape[2:], output_size, align_corners, given, weigh, back=False)

    @lowering(f"aten.{name}_backward.default")
    def _backward(
        c: Context,
        grad: Value,
        output_size: Sequence[int],
        input_size: Sequence[int],
        align_corners: bool,
        *scales: float | None,
    ) -> Value:
        """The gradients: each element gets those of what it was read for, by the same weights."""
        given = (*scales, *[None] * (rank - len(scales)))
        return _resized(
            c, grad, input_size[2:], output_size, align_corners, given, weigh, back=True
        )


_resize("upsample_linear1d", 1, _Resizing.linear)
_resize("upsample_bilinear2d", 2, _Resizing.linear)
_resize("upsample_trilinear3d", 3, _Resizing.linear)
_resize("upsample_bicubic2d", 2, _Resizing.cubic)
