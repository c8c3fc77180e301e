"""Gathers of programs that others wrote: slices, and elements along a dimension, at positions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pjrt_bridge.stablehlo import bindings
from pjrt_bridge.stablehlo.builder.builder import Builder, Value
from pjrt_bridge.stablehlo.builder.rewriting import Operation
from pjrt_bridge.stablehlo.kernels import Kernels
from pjrt_bridge.stablehlo.patterns.reading import integers


def gathered(kernels: Kernels, b: Builder, operation: Operation) -> Sequence[Value] | None:
    """`gather` by `Kernels.gather_slices` or `gather_along`.

    Source: StableHLO specification, "gather": starts are moved into the array, as there.
    """
    x, index = operation.operands
    numbers = bindings.load().stablehlo.GatherDimensionNumbers(
        operation.handle.attributes["dimension_numbers"]
    )
    dims, batch = list(numbers.start_index_map), list(numbers.operand_batching_dims)
    taken = sorted([*dims, *batch])
    sizes = [1 if dim in taken else size for dim, size in enumerate(x.shape)]
    is_plain = (
        dims == sorted(dims)
        and list(numbers.collapsed_slice_dims) == dims
        and integers(operation.handle, "slice_sizes") == sizes
        and index.dtype.is_integer
        and 0 not in (x.size, index.size)
    )
    if not is_plain or not dims:
        return None
    if numbers.index_vector_dim == index.rank:
        index = b.reshape(index, (*index.shape, 1))
    elif numbers.index_vector_dim != index.rank - 1:
        return None
    if batch:
        return _along(kernels, b, x, index, numbers, taken)
    shape = index.shape[:-1]
    front = dims[0] if dims[-1] - dims[0] < len(dims) else 0
    behind = range(front + len(shape), operation.results[0].rank)
    if list(numbers.offset_dims) != [*range(front), *behind]:
        return None
    zeros, ones = [0] * len(shape), [1] * len(shape)
    positions = [
        b.reshape(b.slice(index, [*zeros, at], [*shape, at + 1], [*ones, 1]), shape)
        for at in range(len(dims))
    ]
    return [kernels.gather_slices(b, x, dims, positions)]


def _along(
    kernels: Kernels, b: Builder, x: Value, index: Value, numbers: Any, taken: Sequence[int]
) -> Sequence[Value] | None:
    """Elements along one dimension, at positions of their own for each index of others.

    Args:
        kernels: of the target.
        b: the builder to emit into.
        x: what is read.
        index: the positions, with one more dimension behind the others.
        numbers: the dimensions of the operation.
        taken: the dimensions of `x` that the result has from the positions.
    """
    (dim, *others) = numbers.start_index_map
    batches = numbers.operand_batching_dims, numbers.start_indices_batching_dims
    at = dict(zip(*batches, strict=True))
    left = [place for place in range(index.rank - 1) if place not in at.values()]
    if others or len(left) != 1:
        return None
    at[dim] = left[0]
    in_order = [at[own] for own in taken] == list(range(index.rank - 1))
    slices = [own for own in range(x.rank) if own not in taken]
    if not in_order or list(numbers.offset_dims) != slices:
        return None
    sizes = [index.shape[at[own]] if own in taken else 1 for own in range(x.rank)]
    return [kernels.gather_along(b, x, dim, b.reshape(index, sizes))]
