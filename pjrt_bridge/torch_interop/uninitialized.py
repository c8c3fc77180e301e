"""The values of elements that nothing was written into.

They are zeros, or what PyTorch fills uninitialized memory with where its settings ask for that
(`torch.utils.deterministic.fill_uninitialized_memory`).
"""

from __future__ import annotations

import math

import torch
from torch.utils import deterministic


def fills() -> bool:
    """Whether torch's settings ask for uninitialized memory to be filled."""
    if not torch.are_deterministic_algorithms_enabled():
        return False
    return bool(deterministic.fill_uninitialized_memory)  # type: ignore[attr-defined]


def filling(dtype: torch.dtype) -> float | bool:
    """What elements of a type are filled with: NaN, true, or the largest integer."""
    if dtype.is_floating_point or dtype.is_complex:
        return math.nan
    return True if dtype is torch.bool else torch.iinfo(dtype).max
