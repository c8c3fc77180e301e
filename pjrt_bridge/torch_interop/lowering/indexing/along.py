"""Scatter, the operation, and writing along one dimension at a position for each element.

Positions that are the same for whole slices, as `index.unsqueeze(-1).expand_as(x)`, write slices:
one step for each, where elements would take one each.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pjrt_bridge.stablehlo.builder.builder import Value
from pjrt_bridge.stablehlo.kernel_attributes import Combination
from pjrt_bridge.torch_interop.lowering.context import Context, Operand, normalize_dim
from pjrt_bridge.torch_interop.lowering.indexing.reading import varying
from pjrt_bridge.torch_interop.lowering.shaping.shape import part

Combine = Callable[[Value, Value], Value]
"""What is there and what comes, to what is there afterwards."""


def replace(_: Value, update: Value) -> Value:
    """What comes."""
    return update


def write(
    c: Context, x: Value, positions: Value, updates: Value, combine: Combine, **numbers: Any
) -> Value:
    """One-operand scatter with the index vectors in the last dimension of `positions`."""
    (out,) = c.b.scatter(
        [x],
        positions,
        [updates],
        lambda old, new: combine(old[0], new[0]),
        index_vector_dim=positions.rank - 1,
        **numbers,
    )
    return out


def scatter_along(
    c: Context, x: Value, dim: int, index: Value, src: Operand, how: Combination
) -> Value:
    """Scatter along one dimension, in the type of `x`; `index` may be smaller elsewhere."""
    if index.size == 0:
        return x
    shape = x.shape
    if x.rank == 0 or index.rank == 0:
        x, index = c.reshape(x, (x.size,)), c.reshape(index, (index.size,))
        src = c.reshape(src, (src.size,)) if isinstance(src, Value) else src
    at = normalize_dim(dim, x.rank)
    covered, update = x, src
    for d in range(x.rank):
        if d != at:
            covered = part(c, covered, d, 0, index.shape[d])
        if isinstance(update, Value):
            update = part(c, update, d, 0, index.shape[d])
    positions, dims = varying(index, at)
    sizes = (index.shape[d] if d in dims else 1 for d in range(index.rank))
    written = c.kernels.combine_along(
        c.b,
        covered,
        at,
        c.reshape(positions, tuple(sizes)),
        c.operand(update, x.dtype, index.shape),
        how,
    )
    if written.shape != x.shape:
        written = c.kernels.overwrite(c.b, x, written, [0] * x.rank)
    return c.reshape(written, shape)
