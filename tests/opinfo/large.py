"""Samples large enough for calls of PyTorch's kernels, which those of the database are not.

One of each operator that the rules of the CPU package know, a little above the size from which on
it is a call.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from pjrt_bridge_cpu import small_convolutions
from pjrt_bridge_cpu.aten import attention, products, rows

Call = tuple[tuple[Any, ...], dict[str, Any]]
"""Positional and keyword arguments."""

BOTH = (torch.float32, torch.bfloat16)


@dataclass(frozen=True)
class Large:
    """An entry of the database of which large samples are calls.

    Attributes:
        operator: what is called.
        made: arguments of so many elements, or of so much work.
        least: the size from which on it is called.
        types: of which it is.
    """

    operator: str
    made: Callable[[int, torch.dtype], Call]
    least: int
    types: tuple[torch.dtype, ...] = BOTH

    def below(self, dtype: torch.dtype) -> Call:
        """Arguments that are too small by little."""
        return self.made(int(0.98 * self.least), dtype)

    def above(self, dtype: torch.dtype) -> Call:
        """Arguments that are large enough."""
        return self.made(int(1.03 * self.least), dtype)


def _drawn(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    return torch.randn(shape).to(dtype)


def _row(*more: Any, **named: Any) -> Callable[[int, torch.dtype], Call]:
    return lambda size, dtype: ((_drawn(dtype, size), *more), named)


def _peaks(size: int, dtype: torch.dtype) -> Call:
    """The ten largest differ, also in bfloat16; all where there are fewer."""
    x, count = torch.randn(size), min(10, size)
    x[torch.randperm(size)[:count]] = 8 + torch.arange(float(count))
    return (x.to(dtype), count), {}


def _layer(work: int, dtype: torch.dtype) -> Call:
    """32 rows by a weight of 64 columns."""
    x, weight = (_drawn(dtype, n, work // (32 * 64)) for n in (32, 64))
    return (x, weight.mT), {}


def _image(work: int, dtype: torch.dtype) -> Call:
    """A kernel of 4x4 that is moved by 4, and one image in a line."""
    image = _drawn(dtype, 1, 4, 4, 4 * (work // (64 * 8)))
    return (image, _drawn(dtype, 8, 4, 4, 4)), {"stride": 4}


def _heads(work: int, dtype: torch.dtype) -> Call:
    """Two heads of 16 queries; each key is multiplied with them, and each value."""
    shapes = ((1, 2, 16, 16), *(((1, 2, work // (2 * 2 * 16 * 16), 16),) * 2))
    return tuple(_drawn(dtype, *shape) for shape in shapes), {}


ENTRIES = {
    "softmax": Large("_softmax.out", _row(0), rows.LEAST),
    "log_softmax": Large("_log_softmax.out", _row(0), rows.LEAST),
    "topk": Large("topk.values", _peaks, rows.LEAST_SELECTED),
    "mm": Large("mm.out", _layer, products.LEAST),
    "nn.functional.conv2d": Large("mkldnn_convolution.default", _image, small_convolutions.MOST),
    "nn.functional.scaled_dot_product_attention": Large(
        "_scaled_dot_product_flash_attention_for_cpu.default", _heads, attention.LEAST
    ),
}
"""By name in the database."""
