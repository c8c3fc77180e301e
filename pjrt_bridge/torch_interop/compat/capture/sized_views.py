"""Views of tensors that take a size as a plain integer, made of views that take symbolic sizes."""

from __future__ import annotations

import torch


def diagonal(input: torch.Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> torch.Tensor:
    """`torch.diagonal`: the first diagonal of the square that begins beside or below it."""
    rank = input.dim()
    first, second = dim1 % rank, dim2 % rank
    moved, other = (second, first) if offset >= 0 else (first, second)
    start, rows = abs(offset), input.shape[other]
    length = input.shape[moved]
    # Torch has no diagonal outside of the matrix; it is none then.
    if start > length:
        start = length
    count = rows if rows <= length - start else length - start
    square = input.narrow(moved, start, count).narrow(other, 0, count)
    return torch.diagonal(square, 0, dim1, dim2)


_diagonal = diagonal


def diag_embed(
    input: torch.Tensor, offset: int = 0, dim1: int = -2, dim2: int = -1
) -> torch.Tensor:
    """`torch.diag_embed`."""
    rank = input.dim() + 1
    first, second = dim1 % rank, dim2 % rank
    size = input.shape[-1] + abs(offset)
    shape = list(input.shape[:-1])
    for dim in sorted((first, second)):
        shape.insert(dim, size)
    made = input.new_zeros(shape)
    _diagonal(made, offset, first, second).copy_(input)
    return made


def diag(input: torch.Tensor, diagonal: int = 0) -> torch.Tensor:
    """`torch.diag`."""
    if input.dim() == 1:
        return diag_embed(input, diagonal)
    return _diagonal(input, diagonal).clone()


def unfold(input: torch.Tensor, dimension: int, size: int, step: int) -> torch.Tensor:
    """`torch.Tensor.unfold`: windows along a dimension, over its memory.

    Raises:
        RuntimeError: a window does not fit; PyTorch runs the call then, and raises.
    """
    dim = dimension % max(input.dim(), 1)
    length = input.shape[dim]
    if size > length:
        raise RuntimeError(
            f"maximum size for tensor at dimension {dim} is {length} but size is {size}"
        )
    if size < 0 or step <= 0:
        raise RuntimeError(f"size is {size} but must be >= 0, step is {step} but must be > 0")
    shape, strides = list(input.shape), list(input.stride())
    shape[dim] = (length - size) // step + 1
    stride = strides[dim]
    strides[dim] = stride * step
    return input.as_strided([*shape, size], [*strides, stride])
