"""Functions that torch traces for the sizes of their tensors alone, made of others."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

_aten = torch.ops.aten


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


# -- parts ---------------------------------------------------------------------------------------


def tensor_split(
    input: torch.Tensor, indices_or_sections: Any, dim: int = 0
) -> tuple[torch.Tensor, ...]:
    """`torch.tensor_split`: the first parts have the elements that are left over.

    Raises:
        RuntimeError: PyTorch runs the call then, and raises.
    """
    if isinstance(indices_or_sections, torch.Tensor):
        made: list[torch.Tensor] = _aten.tensor_split.tensor_indices_or_sections(
            input, indices_or_sections, dim
        )
        return tuple(made)
    length = input.shape[dim]
    if isinstance(indices_or_sections, int):
        sections = indices_or_sections
        if sections <= 0:
            raise RuntimeError(f"number of sections must be larger than 0, got {sections}")
        parts, begin = [], 0
        for at in range(sections):
            size = (length + sections - 1 - at) // sections
            parts.append(input.narrow(dim, begin, size))
            begin = begin + size
        return tuple(parts)
    before = (slice(None),) * (dim % input.dim())
    ends = [*indices_or_sections, length]
    return tuple(
        input[(*before, slice(begin, end))]
        for begin, end in zip([0, *indices_or_sections], ends, strict=True)
    )


def split(
    tensor: torch.Tensor, split_size_or_sections: Any, dim: int = 0
) -> tuple[torch.Tensor, ...]:
    """`torch.split`: one graph for each number of parts.

    Raises:
        RuntimeError: PyTorch runs the call then, and raises.
    """
    size = split_size_or_sections
    if isinstance(size, int) and tensor.requires_grad and 0 in tensor.stride():
        # Where elements share memory, AOTAutograd makes a view of changing sizes by its strides,
        # whose gradient is the mean of those of these elements.
        shared: list[torch.Tensor] = _aten.split.Tensor(tensor, size, dim)
        return tuple(shared)
    if isinstance(size, int):
        length = tensor.shape[dim]
        if size <= 0:
            raise RuntimeError(f"split expects split_size to be positive, but got {size}")
        whole = max((length + size - 1) // size, 1) - 1
        size = [*([size] * whole), length - size * whole]
    # Autograd refuses writes into one of several views that an operator gives.
    made: list[torch.Tensor] = _aten.split_with_sizes(tensor, size, dim)
    return tuple(made)


# -- numbers in order ----------------------------------------------------------------------------


def vander(x: torch.Tensor, N: int | None = None, increasing: bool = False) -> torch.Tensor:  # noqa: N803
    """`torch.vander`.

    Raises:
        RuntimeError: `x` has not one dimension.
    """
    if x.dim() != 1:
        raise RuntimeError(f"x must be a one-dimensional tensor, found {x.dim()} dimensions")
    count = x.shape[0] if N is None else N
    made = _powers(x, count)
    return made if increasing else made.flip(-1)


def linalg_vander(x: torch.Tensor, *, N: int | None = None) -> torch.Tensor:  # noqa: N803
    """`torch.linalg.vander`.

    Raises:
        RuntimeError: fewer than two columns are asked for.
    """
    count = x.shape[-1] if N is None else N
    if count <= 1:
        raise RuntimeError(f"N must be greater than 1, found {count}")
    return _powers(x, count)


def _powers(x: torch.Tensor, count: int) -> torch.Tensor:
    """Powers of each element from 0 on, as products one after the other, as in ATen."""
    if not x.is_floating_point() and not x.is_complex():
        x = x.to(torch.int64)
    one = torch.ones_like(x).unsqueeze(-1)
    if count <= 1:
        return one[..., :count]
    several = x.unsqueeze(-1).expand(*x.shape, count - 1)
    return torch.cat([one, several.cumprod(-1)], -1)


# -- gradients of samples (`ReduceOps.cpp`) ------------------------------------------------------


def gradient(
    input: torch.Tensor, *, spacing: Any = 1, dim: Any = None, edge_order: int = 1
) -> tuple[torch.Tensor, ...]:
    """`torch.gradient`.

    Raises:
        RuntimeError: an argument is not one that PyTorch takes; it runs the call then, and raises.
    """
    dims = range(input.dim()) if dim is None else [dim] if isinstance(dim, int) else list(dim)
    several = isinstance(spacing, (list, tuple))
    spacings = list(spacing) if several else [spacing] * len(dims)
    if len(spacings) != len(dims) or edge_order not in (1, 2):
        raise RuntimeError(
            "torch.gradient expected a spacing for each dimension and edge_order 1 or 2, found "
            f"{len(spacings)} for {len(dims)} dimensions, and edge_order {edge_order}"
        )
    for one in dims:
        if input.shape[one] < edge_order + 1:
            raise RuntimeError(
                "torch.gradient expected each dimension size to be at least edge_order+1"
            )
    return tuple(
        _along_points(input, space, one, edge_order)
        if isinstance(space, torch.Tensor)
        else _along(input, space, one, edge_order)
        for space, one in zip(spacings, dims, strict=True)
    )


def _between(x: torch.Tensor, dim: int, begin: int, behind: int = 0) -> torch.Tensor:
    """Elements from `begin` on, without those `behind`."""
    return x.narrow(dim, begin, x.shape[dim] - behind - begin)


def _one(x: torch.Tensor, dim: int, at: int) -> torch.Tensor:
    """Elements at one position, which counts from the end where it is negative."""
    return x.narrow(dim, x.shape[dim] + at if at < 0 else at, 1)


def _along(x: torch.Tensor, space: float, dim: int, edge_order: int) -> torch.Tensor:
    """The gradient of samples at equal distances."""
    one = partial(_one, x, dim)
    center = (_between(x, dim, 2) - _between(x, dim, 0, 2)) / space
    if edge_order == 1:
        first, last = (one(1) - one(0)) / space, (one(-1) - one(-2)) / space
    else:
        first = (one(1) * 4 - one(0) * 3 - one(2)) / (2 * space)
        last = (one(-1) * 3 - one(-2) * 4 + one(-3)) / (2 * space)
    return torch.cat([first, center / 2, last], dim)


def _along_points(x: torch.Tensor, points: torch.Tensor, dim: int, edge_order: int) -> torch.Tensor:
    """The gradient of samples at points."""
    one = partial(_one, x, dim)
    rank = x.dim()
    steps = points.diff().reshape([-1 if at == dim % rank else 1 for at in range(rank)])
    left, right = _between(steps, dim, 0, 1), _between(steps, dim, 1)
    a = -right / (left * (left + right))
    b = (right - left) / (left * right)
    c = left / (right * (left + right))
    center = a * _between(x, dim, 0, 2) + b * _between(x, dim, 1, 1) + c * _between(x, dim, 2)
    start, stop = steps.narrow(dim, 0, 1), steps.narrow(dim, steps.shape[dim] - 1, 1)
    if edge_order == 1:
        first, last = (one(1) - one(0)) / start, (one(-1) - one(-2)) / stop
    else:
        second, next_to_last = steps.narrow(dim, 1, 1), left.narrow(dim, left.shape[dim] - 1, 1)
        both = start + second
        first = (
            -(2 * start + second) / (start * both) * one(0)
            + both / (start * second) * one(1)
            - start / (second * both) * one(2)
        )
        both = stop + next_to_last
        last = (
            stop / (next_to_last * both) * one(-3)
            - both / (next_to_last * stop) * one(-2)
            + (2 * stop + next_to_last) / (stop * both) * one(-1)
        )
    return torch.cat([first, center, last], dim)
