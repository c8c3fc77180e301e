"""Pooling with windows whose sizes are symbols."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch


def pool(
    dims: int,
    whole: Callable[..., Any],
    along: Callable[[torch.Tensor, int], torch.Tensor],
    otherwise: Callable[..., Any],
    defaults: Mapping[str, Any],
) -> Callable[..., torch.Tensor]:
    """A pooling function whose windows may be of any size.

    Args:
        dims: the last dimensions, along which windows lie.
        whole: pools all of them to a size.
        along: pools all of one dimension.
        otherwise: pools with windows of fixed sizes, also with borders.
        defaults: its further arguments, in order, and what they are where none are given.
    """

    def pooled(
        input: torch.Tensor, kernel_size: Any, stride: Any = None, *others: Any, **named: Any
    ) -> torch.Tensor:
        given = {**dict(zip(defaults, others, strict=False)), **named}
        if given.pop("return_indices", False):
            indexed = getattr(torch.nn.functional, f"max_pool{dims}d_with_indices")
            return indexed(input, kernel_size, stride, **given)  # type: ignore[no-any-return]
        # Modules give all of them.
        plain = all(
            name in defaults and all(one == defaults[name] for one in _each(value, 1))
            for name, value in given.items()
        )
        kernel = _each(kernel_size, dims)
        steps = _each(stride, dims) if stride else kernel
        if plain and kernel == tuple(input.shape[-dims:]):
            result: torch.Tensor = whole(input, 1)
        elif not plain or not input.is_floating_point() or not input.is_contiguous():
            # The packet of an operator takes no symbols where its schema has lists of integers.
            listed = {
                name: list(_each(value, dims)) if name in ("padding", "dilation") else value
                for name, value in given.items()
            }
            result = otherwise(input, list(kernel), list(steps), **listed)
        else:
            result = input
            for dim, size, step in zip(range(-dims, 0), kernel, steps, strict=True):
                result = along(_windows(result, dim % input.dim(), size, step), dim)
        return result

    return pooled


def tuple_of(count: int) -> Callable[[Any], tuple[Any, ...]]:
    """What layers make of a size: as many of it, or the several that it is."""

    def made(size: Any) -> tuple[Any, ...]:
        return tuple(size) if isinstance(size, (tuple, list)) else (size,) * count

    return made


def _each(sizes: Any, dims: int) -> tuple[Any, ...]:
    """A size for each dimension."""
    several = tuple(sizes) if isinstance(sizes, (tuple, list)) else (sizes,)
    return several * dims if len(several) == 1 else several


def _windows(x: torch.Tensor, dim: int, size: int, step: int) -> torch.Tensor:
    """The elements of windows along a dimension, in a dimension behind it."""
    if size <= 0 or step <= 0:
        raise RuntimeError("kernel size and stride should be greater than zero")
    if size > x.shape[dim]:
        raise RuntimeError("the kernel is larger than the input")
    count = (x.shape[dim] - size) // step + 1
    index = torch.arange(count, device=x.device)[:, None] * step
    index = index + torch.arange(size, device=x.device)
    shape = (*x.shape[:dim], count, size, *x.shape[dim + 1 :])
    return x.index_select(dim, index.flatten()).reshape(shape)
