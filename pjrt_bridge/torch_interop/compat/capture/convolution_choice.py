"""PyTorch's choice of a kernel for a convolution, which must not divide calls into graphs.

Where torch traces a convolution, it asks which kernel PyTorch would take, to find the order of the
result's dimensions in memory. On the host that choice depends on the size of the batch (less than
16 or not) and of the image, so Dynamo would make a graph for each of these ranges. The order is the
same for all of them, except for volumes whose channels come last.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

_VOLUME = 5
"""Dimensions of a batch of volumes."""


def choose_for_all_sizes(is_for_us: Callable[[], bool]) -> None:
    """Have the choice hold for all sizes of a graph.

    Args:
        is_for_us: whether what Dynamo traces now is for this backend.
    """
    before = getattr(torch._C, "_select_conv_backend", None)
    if before is None:
        return

    def _select_conv_backend(input: Any, weight: Any, *args: Any, **kwargs: Any) -> Any:
        sizes = input.fake_mode.shape_env if isinstance(input, FakeTensor) else None
        if sizes is None or not _is_same_order(input, weight) or not is_for_us():
            return before(input, weight, *args, **kwargs)
        # A tensor keeps what is found out of its strides, so that it would never be a condition.
        others = [item.new_empty(item.shape) for item in (input, weight)]
        with sizes.suppress_guards():
            return before(*others, *args, **kwargs)

    torch._C._select_conv_backend = _select_conv_backend


def _is_same_order(input: Any, weight: Any) -> bool:
    """Whether all kernels give results in the same order."""
    return weight.dim() < _VOLUME or all(item.is_contiguous() for item in (input, weight))
