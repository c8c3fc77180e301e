"""Linear interpolation of lines, images and volumes, and its gradients.

ATen semantics kept: an element is the weighted sum of two neighbours along each dimension, and both
are read where a weight is 0, so that infinities give NaN. Half precision is weighed in float32, by
weights that are rounded to it along one and three dimensions (ATen/native/cpu/UpSampleKernel.cpp).
Dimensions are resized one after the other, those first that become shortest.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from pjrt_bridge.stablehlo.builder.builder import Value
from pjrt_bridge.torch_interop.lowering.context import Context
from pjrt_bridge.torch_interop.lowering.nn.weighted_windows import Weights
from pjrt_bridge.torch_interop.lowering.registry import NotLowerable, lowering


def _weights(
    size: int, count: int, align_corners: bool, scale: float | None, dtype: np.dtype[Any]
) -> tuple[np.ndarray, np.ndarray]:
    """For `count` elements: the places of two among `size`, (count, 2), and the second's weight.

    Args:
        size: of the dimension.
        count: what it is resized to.
        align_corners: the first and the last elements stay where they are.
        scale: by which it is resized, where the caller has said so.
        dtype: that places are computed in.
    """
    index = np.arange(count)
    if size == count:
        # Whatever the scale is.
        return np.stack([index, index], 1), np.zeros(count, dtype)
    place, real = index.astype(dtype), dtype.type
    if align_corners:
        source = place * real((size - 1) / (count - 1) if count > 1 else 0.0)
    else:
        source = (place + real(0.5)) * real(1 / scale if scale else size / count) - real(0.5)
    source = np.maximum(source, real(0))
    first = np.minimum(source.astype(np.int64), size - 1)
    second = np.minimum(first + 1, size - 1)
    return np.stack([first, second], 1), np.clip(source - first.astype(dtype), 0, 1).astype(dtype)


def _resized(
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
    if not x.dtype.is_float:
        raise NotLowerable(f"linear interpolation of {x.dtype}")
    value = c.widen(x)
    real = value.dtype.numpy
    rounded = x.dtype.numpy if len(sizes) != 2 else real
    ways = []
    for dim, (size, count) in enumerate(zip(sizes, counts, strict=True)):
        places, near = _weights(size, count, align_corners, scales[dim], real)
        near = near.astype(rounded)
        far = (np.ones_like(near) - near).astype(rounded)
        weights = Weights(places, np.stack([far, near], 1).astype(real))
        ways.append((dim, weights.turned(size) if back else weights, size / count))
    for dim, weights, _ in sorted(ways, key=lambda way: (-way[2] if not back else way[2], -way[0])):
        value = weights.sums(c, value, dim + 2)
    return c.result(value)


def _resize(name: str, rank: int) -> None:
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
        return _resized(c, x, x.shape[2:], output_size, align_corners, given, back=False)

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
        return _resized(c, grad, input_size[2:], output_size, align_corners, given, back=True)


_resize("upsample_linear1d", 1)
_resize("upsample_bilinear2d", 2)
_resize("upsample_trilinear3d", 3)
