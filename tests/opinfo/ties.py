"""Results that differ where several are right: phases of vectors, ties of sorts."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import torch
from torch.utils import _pytree as pytree

from tests.opinfo.cases import Sample
from tests.sweeping.comparing import Ran

SPECTRAL = (
    "linalg.eigh",
    "linalg.svd",
    "pca_lowrank",
    "svd",
    "svd_lowrank",
)
"""Entries that give vectors of which only the direction is determined, not the sign or phase."""


def in_phase(found: Ran, expected: Ran) -> Ran:
    """Results whose columns, or rows, are multiplied by the phase that brings them nearest."""
    ours, structure = pytree.tree_flatten(found.results)
    theirs = pytree.tree_leaves(expected.results)
    pairs = zip(ours, theirs, strict=True)
    turned = [_turned(one, other) if _is_matrix(one, other) else one for one, other in pairs]
    return Ran(pytree.tree_unflatten(turned, structure), found.gradients, found.arguments)


def _is_matrix(one: Any, other: Any) -> bool:
    return (
        isinstance(one, torch.Tensor)
        and isinstance(other, torch.Tensor)
        and one.shape == other.shape
        and one.dim() > 1
        and (one.is_floating_point() or one.is_complex())
    )


def _turned(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    candidates = [one]
    for dim in (-2, -1):
        overlap = (one.detach().conj() * other.detach()).sum(dim, keepdim=True)
        candidates.append(one * torch.sgn(overlap))
    return min(candidates, key=lambda item: float((item.detach() - other.detach()).abs().sum()))


def differ_in_ties(found: Ran, expected: Ran, sample: Sample) -> bool:
    """Whether an operator that gives positions, chose other equal elements."""
    source = sample.args[0]
    if not isinstance(source, torch.Tensor) or sample.kwargs.get("stable"):
        return False
    *values, ours = pytree.tree_leaves(found.results)
    *wanted, theirs = pytree.tree_leaves(expected.results)
    if len(values) > 1 or ours.dtype is not torch.int64 or not ours.numel():
        return False
    if not all(torch.equal(*pair) for pair in zip(values, wanted, strict=True)):
        return False
    return any(_same_elements(source, dim, ours, theirs) for dim in range(source.dim()))


def _same_elements(
    source: torch.Tensor, dim: int, ours: torch.Tensor, theirs: torch.Tensor
) -> bool:
    if ours.dim() == source.dim() - 1:
        ours, theirs = ours.unsqueeze(dim), theirs.unsqueeze(dim)
    if ours.dim() != source.dim() or int(ours.min()) < 0 or int(ours.max()) >= source.shape[dim]:
        return False
    with suppress(RuntimeError):
        return torch.equal(source.gather(dim, ours), source.gather(dim, theirs))
    return False
