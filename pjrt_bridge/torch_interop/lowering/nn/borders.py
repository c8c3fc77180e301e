"""Padding with elements of the array itself, reflected or repeated, and its gradients.

Pairs of amounts (before, after) are for the last dimension first; negative ones crop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from pjrt_bridge.stablehlo.builder.builder import Value
from pjrt_bridge.torch_interop.lowering.context import INT32, Context
from pjrt_bridge.torch_interop.lowering.nn.weighted_windows import WeightedTerms
from pjrt_bridge.torch_interop.lowering.registry import lowering
from pjrt_bridge.torch_interop.lowering.shaping.slicing import take

Border = Callable[[np.ndarray, int], np.ndarray]
"""The elements in the places that are given, which may lie outside of a dimension of that size."""


def _reflected(place: np.ndarray, size: int) -> np.ndarray:
    last = size - 1
    mirrored: np.ndarray = last - np.abs(last - np.abs(place))
    return mirrored


def _repeated(place: np.ndarray, size: int) -> np.ndarray:
    nearest: np.ndarray = np.clip(place, 0, size - 1)
    return nearest


def _places(
    border: Border, shape: Sequence[int], padding: Sequence[int]
) -> Iterator[tuple[int, np.ndarray]]:
    """By dimension, the last one first, which element is in each place of what is padded."""
    for pair, (before, after) in enumerate(zip(padding[::2], padding[1::2], strict=True)):
        dim = len(shape) - 1 - pair
        if before or after:
            yield dim, border(np.arange(-before, shape[dim] + after), shape[dim])


def _pad(name: str, border: Border) -> None:
    names = [f"aten.{name}_pad{rank}d" for rank in (1, 2, 3)]

    @lowering(*(f"{item}.default" for item in names))
    def _padded(c: Context, x: Value, padding: Sequence[int]) -> Value:
        """The last dimensions of an array, padded."""
        for dim, places in _places(border, x.shape, padding):
            x = take(c, x, c.b.constant(places.astype(np.int32), INT32), dim)
        return x

    @lowering(*(f"{item}_backward.default" for item in names))
    def _backward(c: Context, grad: Value, x: Value, padding: Sequence[int]) -> Value:
        """Each element gets the gradients of all places that it is in; one that is cropped, 0."""
        value = c.widen(grad)
        for dim, places in _places(border, x.shape, padding):
            weights = WeightedTerms(places[:, None], np.ones((len(places), 1)))
            value = weights.turned(x.shape[dim]).sums(c, value, dim)
        return c.result(value)


_pad("reflection", _reflected)
_pad("replication", _repeated)
