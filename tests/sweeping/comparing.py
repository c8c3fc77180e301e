"""Whether two runs of an operator agree."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch
from torch.utils import _pytree as pytree

from tests.comparing import Tolerance, kind_difference, number_difference

Tolerances = Callable[[torch.dtype], Tolerance]
"""By how much numbers of an element type may differ."""


@dataclass(frozen=True)
class Ran:
    """What a run gave: results, gradients (zeros where there is none), arguments afterwards."""

    results: Any
    gradients: list[torch.Tensor]
    arguments: Any

    def named(self) -> list[tuple[str, Any]]:
        """Every leaf with its place."""
        pairs, _ = pytree.tree_flatten_with_path(
            {"result": self.results, "gradient": self.gradients, "argument": self.arguments}
        )
        return [(pytree.keystr(path), leaf) for path, leaf in pairs]


class Numbers(Enum):
    """Which numbers have to agree: all, the mean of larger tensors, or none."""

    ALL = 0
    MEAN = 1
    NONE = 2


def differences(
    found: Ran,
    expected: Ran,
    tolerance: Tolerances,
    numbers: Numbers = Numbers.ALL,
    *,
    least_gradient: float = 0.0,
) -> list[str]:
    """Each place where two runs differ, and how.

    Args:
        found: judged.
        expected: the oracle's.
        tolerance: by how much numbers may differ.
        numbers: which are compared; kinds, shapes, element types and strides always are.
        least_gradient: what counts as the largest element of a gradient where that is smaller.
    """
    ours, theirs = found.named(), expected.named()
    if [place for place, _ in ours] != [place for place, _ in theirs]:
        return [f"other structure: {[p for p, _ in ours]}, not {[p for p, _ in theirs]}"]
    reports = []
    for (place, one), (_, other) in zip(ours, theirs, strict=True):
        # Autograd lays gradients out as it likes, compiled by any backend.
        gradient = place.startswith("['gradient']")
        least = least_gradient if gradient else 0.0
        reason = _difference(one, other, tolerance, numbers, strided=not gradient, least=least)
        if reason is not None:
            reports.append(f"{place}: {reason}")
    return reports


def _difference(
    one: Any, other: Any, tolerance: Tolerances, numbers: Numbers, *, strided: bool, least: float
) -> str | None:
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        if one.requires_grad != other.requires_grad:
            return f"requires_grad {one.requires_grad}, not {other.requires_grad}"
        found = kind_difference(one, other, strided=strided)
        if found is not None or numbers is Numbers.NONE:
            return found
        if numbers is Numbers.MEAN:
            return _mean(one, other)
        return number_difference(one, other, tolerance(one.dtype), least=least)
    if type(one) is not type(other):
        return f"a {type(one).__name__}, not a {type(other).__name__}"
    if isinstance(one, float):
        same = one == other or math.isclose(one, other, rel_tol=1e-5) or one != one != other
        return None if same or numbers is not Numbers.ALL else f"{one}, not {other}"
    if isinstance(one, (bool, int, complex, str, type(None))):
        return None if one == other or numbers is not Numbers.ALL else f"{one!r}, not {other!r}"
    return None


def _mean(one: torch.Tensor, other: torch.Tensor) -> str | None:
    """Means within six standard errors, where there is enough to tell."""
    if one.numel() < 64 or one.dtype.is_complex or one.layout is not torch.strided:
        return None
    ours, theirs = one.detach().double(), other.detach().double()
    spread = (ours.std() + theirs.std()) / math.sqrt(one.numel())
    if not bool(spread.isfinite()) or bool((ours.mean() - theirs.mean()).abs() <= 6 * spread):
        return None
    return f"mean {ours.mean():.4g}, not {theirs.mean():.4g}"
