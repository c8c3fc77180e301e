"""Sums of neighbours with constant weights along one dimension, for averages and resizing."""

from __future__ import annotations

import numpy as np

from pjrt_bridge.stablehlo.builder.builder import Value
from pjrt_bridge.torch_interop.lowering.context import BOOL, INT32, Context
from pjrt_bridge.torch_interop.lowering.shaping.slicing import take


def weigh_windows(
    c: Context, x: Value, dim: int, matrix: np.ndarray, read: np.ndarray | None = None
) -> Value:
    """`x` times a constant matrix along one dimension.

    Elements that are not read have no part in a sum, which in a product they would have where they
    are infinite or NaN.

    Args:
        c: the context.
        x: what is read.
        dim: the dimension, of size m.
        matrix: (m, n), the weights of each of the n sums.
        read: (m, n), which elements are read, next to each other in each column; by default those
            with a weight.
    """
    mask = matrix != 0 if read is None else read
    counts = mask.sum(0)
    steps = np.arange(int(counts.max(initial=0)))
    places = np.minimum(mask.argmax(0)[:, None] + steps, len(matrix) - 1)
    inside = steps < counts[:, None]
    weights = np.where(inside, matrix[places, np.arange(matrix.shape[1])[:, None]], 0)
    found = take(c, x, c.b.constant(places.astype(np.int32), INT32), dim)
    shape, along = found.shape, (dim, dim + 1)
    by_weight = c.b.multiply(
        found, c.b.broadcast_in_dim(c.b.constant(weights, x.dtype), shape, along)
    )
    kept = c.b.broadcast_in_dim(c.b.constant(inside, BOOL), shape, along)
    parts = c.b.select(kept, by_weight, c.full(shape, 0, x.dtype))
    return c.b.reduce_sum(parts, (dim + 1,))
