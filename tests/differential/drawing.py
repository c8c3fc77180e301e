"""How far a random program draws other numbers in another call, and the same with the same seed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tests.differential.ir import Program
from tests.differential.reading import leaves


def draws(
    function: Callable[..., Any], arguments: Callable[..., dict[str, Any]], program: Program
) -> dict[str, tuple[float, float]]:
    """How much three calls differ: a second one from the first, and one with the same seed."""
    runs = []
    for seeded in (True, False, True):
        if seeded:
            torch.manual_seed(77)
        made = arguments(*program.calls[0])
        given = (made[name] for name in program.parameters)
        runs.append(dict(leaves("result", function(*given))))
    first, second, third = runs
    return {
        place: (_share_of(leaf, second[place]), _share_of(leaf, third[place]))
        for place, leaf in first.items()
        if isinstance(leaf, torch.Tensor)
        and leaf.numel() >= 16
        and isinstance(second.get(place), torch.Tensor)
        and second[place].shape == third[place].shape == leaf.shape
    }


def _share_of(one: torch.Tensor, other: torch.Tensor) -> float:
    if not one.is_floating_point():
        return float((one != other).double().mean())
    # Operators that are fused otherwise in another call round otherwise.
    alike = torch.isclose(one.double(), other.double(), rtol=1e-5, atol=1e-6, equal_nan=True)
    return float((~alike).double().mean())
