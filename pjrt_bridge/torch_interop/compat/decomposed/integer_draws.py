"""`random_`, which fills a tensor of any type with integers, as `randint_like`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._ops import OpOverload

from pjrt_bridge.torch_interop.compat.operators import by_operator


def draw_decompositions() -> dict[OpOverload, Callable[..., Any]]:
    """For each overload of `random` its decomposition."""
    names = ("aten.random.default", "aten.random.to", "aten.random.from")
    return by_operator(dict.fromkeys(names, _random))


def drawn_between(dtype: torch.dtype, *limits: int | None) -> tuple[int, int] | None:
    """From which integer to below which `random_` draws, as `randint_like` takes them.

    None for limits that PyTorch refuses or warns of, and for element types of which integers
    do not fit its arguments.

    Args:
        dtype: of the tensor.
        limits: none, the upper one, or both; an upper one of None is the element type's.
    """
    whole = _integers_of(dtype)
    if whole is None:
        return None
    least, end = whole
    high = limits[-1] if limits else None
    low = limits[0] if len(limits) > 1 else 0
    if high is None:
        high = end
    assert low is not None
    # Without its greatest number, which is one of 2**63, a range of int64 fits.
    return (low, min(high, _END)) if least <= low < high <= end else None


_END = 2**63 - 1


def _integers_of(dtype: torch.dtype) -> tuple[int, int] | None:
    """The least integer that `random_` gives, and the one behind the greatest."""
    if dtype is torch.bool:
        return 0, 2
    if dtype in _DIGITS:
        # All integers up to there are numbers of the type.
        greatest = 1 << _DIGITS[dtype]
        return -greatest, greatest + 1
    if dtype.is_floating_point or dtype.is_complex or dtype is torch.uint64:
        return None
    limits = torch.iinfo(dtype)
    return limits.min, limits.max + 1


_DIGITS = {torch.float16: 11, torch.bfloat16: 8, torch.float32: 24, torch.float64: 53}


def _random(self: torch.Tensor, *limits: int | None, generator: Any = None) -> Any:
    found = drawn_between(self.dtype, *limits)
    if found is None or generator is not None:
        return NotImplemented
    return torch.ops.aten.randint_like.low_dtype(self, *found)
