"""Rows of texts one after the other, and padded: what nested tensors of layout jagged convert.

Torch (2.13) has no decompositions of these operators, whose kernels are those of FBGEMM.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

from pjrt_bridge.torch_interop.compat.operators import operator


def jagged_decompositions() -> dict[OpOverload, Callable[..., Any]]:
    """For each operator its decomposition."""
    rules: dict[str, Callable[..., Any]] = {
        "aten._jagged_to_padded_dense_forward.default": _padded,
        "aten._padded_dense_to_jagged_forward.default": _jagged,
    }
    found = {operator(name): rule for name, rule in rules.items()}
    return {op: rule for op, rule in found.items() if op is not None}


def _padded(
    values: Tensor,
    offsets: Sequence[Tensor],
    max_lengths: Sequence[int],
    padding_value: float = 0.0,
) -> Tensor:
    """(rows, ...) and (texts + 1,) to (texts, longest, ...); what is longer is cut off."""
    if len(offsets) != 1:
        return NotImplemented  # type: ignore[no-any-return]
    (ends,), (longest,) = offsets, max_lengths
    place = ends[:-1].unsqueeze(1) + torch.arange(longest, device=values.device)
    inside = place < ends[1:].unsqueeze(1)
    rows = values[torch.where(inside, place, 0)]
    inside = inside.reshape(*place.shape, *[1] * (values.dim() - 1))
    return torch.where(inside, rows, values.new_full((), padding_value))


def _jagged(dense: Tensor, offsets: Sequence[Tensor], total_L: int | None = None) -> Tensor:  # noqa: N803
    """(texts, longest, ...) and (texts + 1,) to (rows, ...).

    Torch's kernel refuses texts of more rows than the longest; what is missing is 0 here.
    """
    if len(offsets) != 1 or total_L is None:
        return NotImplemented  # type: ignore[no-any-return]
    (ends,) = offsets
    row = torch.arange(total_L, device=dense.device)
    text = torch.searchsorted(ends[1:].contiguous(), row, right=True)
    place = row - ends[text]
    inside = place < dense.shape[1]
    found = dense[text, torch.where(inside, place, 0)]
    inside = inside.reshape(-1, *[1] * (dense.dim() - 2))
    return torch.where(inside, found, dense.new_zeros(()))
