"""Resizing of images with antialiasing.

ATen semantics kept: a filter is as wide as the scale when an image shrinks, its weights add up to
1, and where it begins and ends is rounded in the type that is computed in, float32 for half
precision. What is outside a filter is not read, so infinities do not spread; nor does an image have
filters along a dimension that keeps its size. Columns and rows are resized one after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from pjrt_bridge.stablehlo.builder.builder import Value
from pjrt_bridge.torch_interop.lowering.context import Context
from pjrt_bridge.torch_interop.lowering.nn.weighted_windows import WeightedTerms, scale_of
from pjrt_bridge.torch_interop.lowering.registry import NotLowerable, lowering

Filter = Callable[[np.ndarray], np.ndarray]


def _triangle(distance: np.ndarray) -> np.ndarray:
    weight: np.ndarray = np.maximum(1 - distance, 0)
    return weight


def _cubic(distance: np.ndarray) -> np.ndarray:
    """Keys' cubic with a = -1/2 ("Cubic convolution interpolation", 1981)."""
    near = (1.5 * distance - 2.5) * distance * distance + 1
    far = ((-0.5 * distance + 2.5) * distance - 4) * distance + 2
    return np.where(distance < 1, near, np.where(distance < 2, far, 0))


def _weights(
    size: int, count: int, scale: float, kind: Filter, reach: int, dtype: np.dtype[Any]
) -> tuple[np.ndarray, np.ndarray]:
    """(size, count) each: the weight of each element in each resized one; whether it is read."""
    real = dtype.type
    step = real(scale)
    wide = real(reach) * max(step, real(1))
    center = ((np.arange(count) + 0.5) * float(step)).astype(dtype)
    first = np.floor((center - wide).astype(np.float64) + 0.5)
    last = np.floor((center + wide).astype(np.float64) + 0.5)
    place = np.arange(size, dtype=dtype)[:, None]
    read = (place >= first) & (place < last)
    distance = ((place - center).astype(np.float64) + 0.5) / float(max(step, real(1)))
    weight = np.where(read, kind(np.abs(distance.astype(dtype))), real(0))
    total = weight.sum(0)
    return weight / np.where(total == 0, real(1), total), read


def _resize(name: str, kind: Filter, reach: int) -> None:
    def resized(
        c: Context,
        x: Value,
        sizes: Sequence[int],
        counts: Sequence[int],
        align_corners: bool,
        scales: Sequence[float | None],
        *,
        back: bool,
    ) -> Value:
        """`x` resized from `sizes` to `counts`, or gradients the other way."""
        value = c.widen(x)
        for at in (0, 1) if back else (1, 0):
            size, count = sizes[at], counts[at]
            if size == count and not back:
                continue  # whatever the scale is; gradients are weighed nevertheless
            scale = scale_of(size, count, align_corners, scales[at])
            given = _weights(size, count, scale, kind, reach, value.dtype.numpy)
            matrix, read = (part.T for part in given) if back else given
            value = WeightedTerms.of_matrix(matrix, read).sums(c, value, at + 2)
        return c.result(value)

    @lowering(f"aten.{name}.default")
    def _lower(
        c: Context,
        x: Value,
        output_size: Sequence[int],
        align_corners: bool,
        scales_h: float | None = None,
        scales_w: float | None = None,
    ) -> Value:
        """(batch, channels, height, width) resized."""
        if not x.dtype.is_float:
            raise NotLowerable(f"antialiased resizing of {x.dtype}")
        scales = (scales_h, scales_w)
        return resized(c, x, x.shape[2:], output_size, align_corners, scales, back=False)

    @lowering(f"aten.{name}_backward.default")
    def _backward(
        c: Context,
        grad: Value,
        output_size: Sequence[int],
        input_size: Sequence[int],
        align_corners: bool,
        scales_h: float | None = None,
        scales_w: float | None = None,
    ) -> Value:
        """The gradients: each element gets those of what it was read for, by the same weights."""
        scales = (scales_h, scales_w)
        return resized(c, grad, input_size[2:], output_size, align_corners, scales, back=True)


_resize("_upsample_bilinear2d_aa", _triangle, 1)
_resize("_upsample_bicubic2d_aa", _cubic, 2)
