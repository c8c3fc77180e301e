"""Indices of the elements of triangles, of matrices whose sizes may be symbols.

The same as `torch._refs` has, whose checks end Dynamo's graph: their messages hold the sizes.
"""

from __future__ import annotations

import torch
from torch._refs import _get_tril_sizes, _get_triu_sizes


def tril_indices(
    row: int,
    col: int,
    offset: int = 0,
    *,
    dtype: torch.dtype = torch.long,
    device: torch.device | str | None = None,
) -> torch.Tensor:
    """`torch.tril_indices`."""
    _check("tril_indices", dtype)
    in_triangle, below, first = _get_tril_sizes(row, col, offset)
    at = torch.arange(in_triangle, dtype=torch.float64, device=device)
    half = first - 0.5
    rows = torch.floor(-half + torch.sqrt(half * half + 2 * at))
    columns = torch.floor(at - (2 * first - 1 + rows) * rows * 0.5)
    start = max(0, -offset)
    behind = torch.arange(below, dtype=dtype, device=device)
    return torch.stack(
        (
            torch.cat(((rows + start).to(dtype), behind // col + (col - first + 1 + start))),
            torch.cat((columns.to(dtype), behind % col)),
        )
    )


def triu_indices(
    row: int,
    col: int,
    offset: int = 0,
    *,
    dtype: torch.dtype = torch.long,
    device: torch.device | str | None = None,
) -> torch.Tensor:
    """`torch.triu_indices`."""
    _check("triu_indices", dtype)
    in_triangle, above, first = _get_triu_sizes(row, col, offset)
    before = torch.arange(above, dtype=dtype, device=device)
    at = torch.arange(in_triangle, dtype=torch.float64, device=device)
    half = -0.5 - first
    rows = torch.floor(-half - torch.sqrt(half * half - 2 * at))
    columns = torch.floor(at - (2 * first - 1 - rows) * rows * 0.5)
    return torch.stack(
        (
            torch.cat((before // col, rows.to(dtype) + (above // col if col else 0))),
            torch.cat((before % col, columns.to(dtype) + max(0, offset))),
        )
    )


def _check(name: str, dtype: torch.dtype) -> None:
    """Check the element type.

    Raises:
        RuntimeError: it is another than PyTorch takes, which runs the call then, and raises.
    """
    if dtype not in (torch.int32, torch.int64):
        raise RuntimeError(f"{name} has no element type {dtype}, but int32 or int64")
