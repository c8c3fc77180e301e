"""Functions that torch traces for the sizes of their tensors alone, made of others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch


def kron(input: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """`torch.kron`."""
    rank = max(input.dim(), other.dim())
    input = input[(None,) * (rank - input.dim())]
    other = other[(None,) * (rank - other.dim())]
    sizes = [one * more for one, more in zip(input.shape, other.shape, strict=True)]
    for dim in range(rank):
        input, other = input.unsqueeze(2 * dim + 1), other.unsqueeze(2 * dim)
    return (input * other).reshape(sizes)


def pad_sequence(
    sequences: Sequence[torch.Tensor],
    batch_first: bool = False,
    padding_value: float = 0.0,
    padding_side: str = "right",
) -> torch.Tensor:
    """`torch.nn.utils.rnn.pad_sequence`, whichever of the sequences is the longest.

    Raises:
        RuntimeError: PyTorch runs the call then, and raises.
    """
    if padding_side not in ("left", "right"):
        raise RuntimeError(f"expected padding_side to be left or right, found {padding_side!r}")
    longest = sequences[0].shape[0]
    for one in sequences[1:]:
        longest = torch.sym_max(longest, one.shape[0])  # type: ignore[no-untyped-call]
    several = []
    for one in sequences:
        length = one.shape[0]
        place = torch.arange(longest, device=one.device)
        if padding_side == "left":
            place = place - (longest - length)
        if length > 0:
            row = one.to(sequences[0].dtype)[place.clamp(0, length - 1)]
            inside = (place >= 0) & (place < length)
            row = torch.where(inside.reshape(-1, *[1] * (one.dim() - 1)), row, padding_value)
        else:
            row = sequences[0].new_full((longest, *sequences[0].shape[1:]), padding_value)
        several.append(row.to(sequences[0].dtype))
    return torch.stack(several, 0 if batch_first else 1)


def max_pool1d(
    input: torch.Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """`torch.max_pool1d`, whose trace in torch holds for the sizes of its input alone."""
    if return_indices:
        return torch.nn.functional.max_pool1d_with_indices(
            input, kernel_size, stride, padding, dilation, ceil_mode
        )

    def both(other: int, size: Any) -> tuple[int, int]:
        return (other, size) if isinstance(size, int) else (other, *size)

    return torch.nn.functional.max_pool2d(
        input.unsqueeze(-2),
        both(1, kernel_size),
        both(1, stride or kernel_size),
        both(0, padding),
        both(1, dilation),
        ceil_mode,
    ).squeeze(-2)


def take_along_dim(
    input: torch.Tensor, indices: torch.Tensor, dim: int | None = None
) -> torch.Tensor:
    """`torch.take_along_dim`.

    Raises:
        RuntimeError: the tensors differ in their number of dimensions.
    """
    if dim is None:
        return input.reshape(-1).gather(0, indices.reshape(-1))
    if input.dim() != indices.dim():
        raise RuntimeError(
            "torch.take_along_dim(): input and indices should have the same number of "
            f"dimensions, but got {input.dim()} dimensions for input, and {indices.dim()} "
            "dimensions for indices"
        )
    # Sizes of 1 are never symbols.
    pairs = zip(input.shape, indices.shape, strict=True)
    shape = [other if own == 1 else own for own, other in pairs]
    dim = dim % input.dim()
    whole, taken = (
        item.expand([*shape[:dim], item.shape[dim], *shape[dim + 1 :]]) for item in (input, indices)
    )
    return whole.gather(dim, taken)
