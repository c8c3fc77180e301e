"""Products of few rows, of weights in bfloat16, int8 and float32, by a call (`native/thin.c`).

XLA's CPU compiler converts narrow weights of such a product to float32 in memory before it
multiplies, and puts transposed ones into another order. That takes up to 50 times as long as to
read them once, which is all that a product of few rows needs. Models that make one token after the
other consist of these.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from pjrt_bridge import dtypes
from pjrt_bridge.dtypes import DType
from pjrt_bridge.runtime import Client
from pjrt_bridge.stablehlo import Builder, TensorType, Value
from pjrt_bridge.stablehlo.kernels import Kernels
from pjrt_bridge_cpu.aten.calls import Load
from pjrt_bridge_cpu.aten.library import can_call
from pjrt_bridge_cpu.small_products import MOST_VECTORS, is_outer, is_sum

TARGET = "pjrt_bridge.thin.1"
"""Name of the custom call. Its number changes with what it is given."""

MOST_ROWS = 15
"""Rows up to which a product is one. The call takes one more."""

LEAST = 1 << 14
"""Weights from which on it is worth a call."""

SHORTEST = 64
"""The inner size from which on sums along transposed weights are: to end one takes longer."""

NARROWEST = 16
"""Columns below which a small product is that of the transposed sides: the call goes through rows
of weights by vectors."""

SHORTEST_SUM = 16
"""The inner size below which weights of small products of more than `MOST_ROWS` rows are put into
the other order before."""

MOST_COLUMNS = 8
"""Columns up to which a product of many rows, too, is that of the transposed sides: (4096 x 1024)
by (1024 x 8) takes half the time."""

LONG = 256
"""Rows, and the inner size, from which on it is. As a call (4096 x 64) by (64 x 8) takes twice as
long."""

PORTABLE, AVX2, AVX512, AVX512_BF16 = range(4)
"""The widest vectors that a call may use."""

_FLOAT32, _BFLOAT16, _INT8 = map(dtypes.of, ("float32", "bfloat16", "int8"))
_FLOATS = (_FLOAT32, _BFLOAT16)
_NARROW = (_BFLOAT16, _INT8)


class ThinProducts(Kernels):
    """Products that read weights in their own element type.

    Attributes:
        can_multiply_thin: the client's plugin makes the custom call.
    """

    can_multiply_thin = False

    def product(self, b: Builder, x: Value, y: Value, *, accumulator: DType, dtype: DType) -> Value:
        """See `Kernels.product`."""
        if self.is_thin(x, y, accumulator, dtype):
            few_columns = x.shape[-2] > MOST_ROWS
            return (_swapped if few_columns else _multiplied)(b, x, y, dtype)
        return super().product(b, x, y, accumulator=accumulator, dtype=dtype)

    def small_product(
        self, b: Builder, x: Value, y: Value, *, accumulator: DType, dtype: DType
    ) -> Value | None:
        """See `Kernels.small_product`."""
        if not self._may_call(x, y, accumulator, dtype) or _is_loop(x, y):
            return None
        few_columns = y.shape[-1] < min(NARROWEST, x.shape[-2]) and y.dtype in _FLOATS
        return (_swapped if few_columns else _multiplied)(b, x, y, dtype)

    def is_thin(self, x: Value, y: Value, accumulator: DType, dtype: DType) -> bool:
        """Whether a product is one of these, and faster as a call."""
        if not self._may_call(x, y, accumulator, dtype):
            return False
        return self._has_few_rows(x, y) or self._has_few_columns(x, y)

    def _has_few_rows(self, x: Value, y: Value) -> bool:
        weights, transposed = _weights(y)
        return (
            # The compiler goes through weights of float32 in their own order where it can.
            (weights.dtype in _NARROW or transposed)
            and x.shape[-2] <= MOST_ROWS
            and y.size >= LEAST
            and (x.shape[-1] >= SHORTEST or not transposed)
            and self.pays(Load(KIND, y.size), weights.dtype)
        )

    def _has_few_columns(self, x: Value, y: Value) -> bool:
        """Whether the rows are weights of a product of few rows, which are the columns."""
        rows, inner, columns = *x.shape[-2:], y.shape[-1]
        _, transposed = _weights(x)
        return (
            y.dtype in _FLOATS
            and not transposed
            and 1 < columns <= MOST_COLUMNS
            and min(rows, inner) >= LONG
            and self.pays(Load(KIND, x.size), x.dtype)
        )

    def _may_call(self, x: Value, y: Value, accumulator: DType, dtype: DType) -> bool:
        weights, _ = _weights(y)
        return (
            self.can_multiply_thin
            and x.dtype in _FLOATS
            and weights.dtype in (_FLOAT32, *_NARROW)
            and accumulator == _FLOAT32
            and dtype in _FLOATS
            and x.size > 0
            and not is_outer(x)
        )

    def pays(self, load: Load, dtype: DType) -> bool:
        """Whether a call is as fast as XLA's own code, as far as that is known.

        Args:
            load: by which its gain is measured.
            dtype: of the weights.
        """
        return True


KIND = "thin product"
"""Of loads; their size is the number of weights."""


def can_multiply_thin(client: Client) -> bool:
    """Register the custom call with a client's plugin; whether it makes the call."""
    return can_call(client, TARGET, "MULTIPLY_THIN")


def multiply(
    b: Builder,
    x: Value,
    weights: Value,
    dtype: DType,
    *,
    transposed: bool,
    vectors: int = AVX512_BF16,
) -> Value:
    """The custom call.

    Args:
        b: the builder to emit into.
        x: (batches, rows, inner), float32 or bfloat16, of up to 16 rows.
        weights: (batches, inner, columns), float32, bfloat16 or int8.
        dtype: of the result, float32 or bfloat16.
        transposed: the weights are (batches, columns, inner).
        vectors: the widest that it may use.

    Returns:
        (batches, rows, columns), summed in float32 and rounded once.
    """
    columns = weights.shape[1 if transposed else 2]
    config: dict[str, Any] = {"how": np.array([transposed, vectors], np.int64)}
    result = TensorType((*x.shape[:2], columns), dtype)
    (product,) = b.custom_call(TARGET, [x, weights], [result], backend_config=config)
    return product


def _swapped(b: Builder, x: Value, y: Value, dtype: DType) -> Value:
    """A product of few columns, by that of the transposed sides."""
    swap = swapped(y.rank)
    left, right = (b.transpose(side, swap) for side in (y, x))
    return b.transpose(_multiplied(b, left, right, dtype), swap)


def _multiplied(b: Builder, x: Value, y: Value, dtype: DType) -> Value:
    weights, transposed = _weights(y)
    if transposed and x.shape[-1] < SHORTEST_SUM and x.shape[-2] > MOST_ROWS:
        weights, transposed = y, False
    left, right = (_in_one_batch(b, side) for side in (x, weights))
    product = multiply(b, left, right, dtype, transposed=transposed)
    return b.reshape(product, (*x.shape[:-1], y.shape[-1]))


def _weights(y: Value) -> tuple[Value, bool]:
    """What the right side was converted and transposed from, and whether it was transposed."""
    transposed = False
    while True:
        swap = swapped(y.rank)
        if y.widened is not None and y.widened.dtype in _NARROW:
            y = y.widened
        elif y.origin is not None and y.origin.permutation == swap:
            y, transposed = y.origin.value, not transposed
        else:
            return y, transposed


def swapped(rank: int) -> tuple[int, ...]:
    """The permutation that transposes matrices."""
    return (*range(rank - 2), rank - 1, rank - 2)


def _is_loop(x: Value, y: Value) -> bool:
    """Whether many products with vectors take less time as one loop."""
    has_vectors = x.shape[-2] == 1 or y.shape[-1] == 1
    return has_vectors and (is_sum(x, y) or math.prod(x.shape[:-2]) >= MOST_VECTORS)


def _in_one_batch(b: Builder, side: Value) -> Value:
    shape = (math.prod(side.shape[:-2]), *side.shape[-2:])
    return side if side.shape == shape else b.reshape(side, shape)
