"""Products of many small matrices, and of columns and rows, by products of their elements.

XLA's CPU compiler calls a product of matrices for each of a batch, which takes 1.5 us where the
matrices are as small as 8 x 8. One loop over all results has vectors. Of a column and a row, which
make the gradient of weights in a batch of one, the product takes twice as long as such a loop.
"""

from __future__ import annotations

import math

from pjrt_bridge.dtypes import DType
from pjrt_bridge.stablehlo import Builder, Value, memory_order
from pjrt_bridge.stablehlo.kernels import Kernels, convert

LARGEST = 8**3
"""Multiplications of one product, up to which it is a sum."""

LARGEST_IN_ORDER = 16**3
"""The same where no side is transposed in memory, and vectors are read as they lie."""

LEAST = 16
"""Products from which on they are sums."""

SHORT = 8
"""Numbers of a vector up to which `MOST_VECTORS` products and more are sums: the compiler makes a
call of each of them."""

MOST_VECTORS = 512
"""Products with vectors in a batch from which on XLA's own loop is faster than one call, although a
program with it is handed to another thread: the call begins anew with each."""


class SmallProducts(Kernels):
    """Products of small matrices in batches, and outer products."""

    def product(self, b: Builder, x: Value, y: Value, *, accumulator: DType, dtype: DType) -> Value:
        """See `Kernels.product`."""
        if is_outer(x):
            result = (*x.shape[:-1], y.shape[-1])
            sides = (convert(b, side, accumulator) for side in (x, y))
            left, right = (b.broadcast_in_dim(side, result, range(x.rank)) for side in sides)
            return convert(b, b.multiply(left, right), dtype)
        if not is_sum(x, y) or not (accumulator.is_float and accumulator.bits == 32):
            return super().product(b, x, y, accumulator=accumulator, dtype=dtype)
        *batch, rows, inner = x.shape
        shape, rank = (*batch, rows, inner, y.shape[-1]), x.rank
        left = b.broadcast_in_dim(convert(b, x, accumulator), shape, range(rank))
        dims = (*range(rank - 2), rank - 1, rank)
        right = b.broadcast_in_dim(convert(b, y, accumulator), shape, dims)
        found = self.reduce(b, "sum", b.multiply(left, right), (rank - 1,))
        return convert(b, found, dtype)


def is_outer(x: Value) -> bool:
    """Whether the left side of a product is columns, of several numbers each."""
    return x.shape[-1] == 1 and x.shape[-2] > 1


def is_sum(x: Value, y: Value) -> bool:
    """Whether many products are small enough for a sum of products of their elements.

    Those with vectors are, where the matrices do not lie one behind the other in memory, or the
    vectors are short and at least `MOST_VECTORS`.
    """
    rows, inner, columns = *x.shape[-2:], y.shape[-1]
    in_order = all(memory_order(side) == tuple(range(side.rank)) for side in (x, y))
    count = math.prod(x.shape[:-2])
    if inner == 1:
        return False
    if in_order and min(rows, columns) == 1 and (inner > SHORT or count < MOST_VECTORS):
        return False
    largest = LARGEST_IN_ORDER if in_order else LARGEST
    return rows * inner * columns <= largest and count >= LEAST
