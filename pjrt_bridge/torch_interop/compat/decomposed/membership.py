"""A decomposition of `isin` that finds floating-point numbers where others are NaN.

Torch's decomposition searches in the sorted numbers by halves, and misses numbers where it compares
one with NaN.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._decomp.decompositions import isin
from torch._ops import OpOverload

from pjrt_bridge.torch_interop.compat.operators import by_operator


def membership_decompositions() -> dict[OpOverload, Callable[..., Any]]:
    """For each overload of `isin` that takes several numbers to look in its decomposition."""
    return by_operator(
        dict.fromkeys(("aten.isin.Tensor_Tensor", "aten.isin.Scalar_Tensor"), _is_in)
    )


def _is_in(
    elements: Any, test_elements: torch.Tensor, *, assume_unique: bool = False, invert: bool = False
) -> Any:
    if assume_unique or not test_elements.is_floating_point():
        return isin(elements, test_elements, assume_unique=assume_unique, invert=invert)
    # NaN equals nothing. Infinity, which is sorted last as it is, stands in its place, and is found
    # only where it is among the numbers itself.
    numbers = torch.where(test_elements.isnan(), torch.inf, test_elements)
    found = isin(elements, numbers)
    found = found & ((elements != torch.inf) | (test_elements == torch.inf).any())
    return ~found if invert else found
