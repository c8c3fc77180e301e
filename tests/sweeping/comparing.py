"""Whether two runs of an operator agree."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch
from torch._prims_common import is_non_overlapping_and_dense_or_false as is_dense
from torch.utils import _pytree as pytree


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
    found: Ran, expected: Ran, tolerance: Any, numbers: Numbers = Numbers.ALL
) -> list[str]:
    """Each place where two runs differ, and how.

    Args:
        found: judged.
        expected: the oracle's.
        tolerance: gives (relative, absolute) for an element type.
        numbers: which are compared; kinds, shapes, element types and strides always are.
    """
    ours, theirs = found.named(), expected.named()
    if [place for place, _ in ours] != [place for place, _ in theirs]:
        return [f"other structure: {[p for p, _ in ours]}, not {[p for p, _ in theirs]}"]
    reports = []
    for (place, one), (_, other) in zip(ours, theirs, strict=True):
        # Autograd lays gradients out as it likes, compiled by any backend.
        strided = "gradient" not in place
        reason = _difference(one, other, tolerance, numbers, strided)
        if reason is not None:
            reports.append(f"{place}: {reason}")
    return reports


def _difference(
    one: Any, other: Any, tolerance: Any, numbers: Numbers, strided: bool
) -> str | None:
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        for name in ("layout", "dtype", "shape"):
            ours, theirs = getattr(one, name), getattr(other, name)
            if ours != theirs:
                return f"{name} {ours}, not {theirs}"
        if one.requires_grad != other.requires_grad:
            return f"requires_grad {one.requires_grad}, not {other.requires_grad}"
        if strided and one.layout is torch.strided and not _lie_alike(one, other):
            return f"strides {one.stride()}, not {other.stride()}"
        if numbers is Numbers.MEAN:
            return _mean(one, other)
        return _elements(one, other, *tolerance(one.dtype)) if numbers is Numbers.ALL else None
    if type(one) is not type(other):
        return f"a {type(one).__name__}, not a {type(other).__name__}"
    if isinstance(one, float):
        same = one == other or math.isclose(one, other, rel_tol=1e-5) or one != one != other
        return None if same or numbers is not Numbers.ALL else f"{one}, not {other}"
    if isinstance(one, (bool, int, complex, str, type(None))):
        return None if one == other or numbers is not Numbers.ALL else f"{one!r}, not {other!r}"
    return None


def _lie_alike(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether strides agree where they matter; gaps in memory are not kept by the backend."""
    if other.numel() == 0:
        return True
    pairs = zip(other.shape, one.stride(), other.stride(), strict=True)
    long = [(ours, theirs) for size, ours, theirs in pairs if size > 1]
    if any(theirs == 0 for _, theirs in long) or not is_dense(other):
        return all((ours == 0) == (theirs == 0) for ours, theirs in long)
    return all(ours == theirs for ours, theirs in long)


def _elements(one: torch.Tensor, other: torch.Tensor, rtol: float, atol: float) -> str | None:
    """What assert_close says; sums that cancel are rounded as their largest terms are."""
    one, other = one.detach(), other.detach()
    if atol and other.layout is torch.strided and other.numel():
        eps = torch.finfo(other.dtype).eps
        if other.dtype.itemsize == 1:
            one, other = one.float(), other.float()
        largest = float(other.abs().nan_to_num(posinf=0).max())
        atol = max(atol, 4 * eps * largest)
    try:
        torch.testing.assert_close(
            one, other, rtol=rtol, atol=atol, equal_nan=True, check_stride=False
        )
    except AssertionError as error:
        return " ".join(str(error).split())
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
