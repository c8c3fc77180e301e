"""Conversions between sequences one after the other and padded ones, of jagged nested tensors.

Torch (2.13) has no decompositions of these operators, whose kernels are those of FBGEMM.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

from pjrt_bridge.torch_interop.compat.operators import by_operator


def jagged_decompositions() -> dict[OpOverload, Callable[..., Any]]:
    """For each operator its decomposition."""
    rules: dict[str, Callable[..., Any]] = {
        "aten._jagged_to_padded_dense_forward.default": _padded,
        "aten._padded_dense_to_jagged_forward.default": _jagged,
    }
    return by_operator(rules)


def _padded(
    values: Tensor,
    offsets: Sequence[Tensor],
    max_lengths: Sequence[int],
    padding_value: float = 0.0,
) -> Tensor:
    """(rows, ...) and (sequences + 1,) to (sequences, longest, ...); longer ones are cut off."""
    if len(offsets) != 1:
        return NotImplemented  # type: ignore[no-any-return]
    (ends,), (longest,) = offsets, max_lengths
    place = ends[:-1].unsqueeze(1) + torch.arange(longest, device=values.device)
    inside = place < ends[1:].unsqueeze(1)
    rows = values[torch.where(inside, place, 0)]
    inside = inside.reshape(*place.shape, *[1] * (values.dim() - 1))
    return torch.where(inside, rows, values.new_full((), padding_value))


def _jagged(dense: Tensor, offsets: Sequence[Tensor], total_L: int | None = None) -> Tensor:  # noqa: N803
    """(sequences, longest, ...) and (sequences + 1,) to (rows, ...).

    Torch's kernel refuses sequences that are longer than `longest`; the rows they lack are 0 here.
    """
    if len(offsets) != 1 or total_L is None:
        return NotImplemented  # type: ignore[no-any-return]
    (ends,) = offsets
    row = torch.arange(total_L, device=dense.device)
    sequence = torch.searchsorted(ends[1:].contiguous(), row, right=True)
    place = row - ends[sequence]
    inside = place < dense.shape[1]
    found = dense[sequence, torch.where(inside, place, 0)]
    inside = inside.reshape(-1, *[1] * (dense.dim() - 2))
    return torch.where(inside, found, dense.new_zeros(()))
