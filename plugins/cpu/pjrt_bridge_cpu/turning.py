"""Products with transposed weights, turned round so that nobody goes through the weights across.

XLA's CPU compiler packs a transposed right side element by element, and of a few rows times a large
matrix that is most of the work. `(W @ x^T)^T` is the same with the small sides transposed. What is
stored between keeps the compiler from making one product of it again.
"""

from __future__ import annotations

from pjrt_bridge.dtypes import DType
from pjrt_bridge.stablehlo.builder import Builder, Value
from pjrt_bridge.torch_interop.lowering.kernels import Kernels

_LEAST = 1 << 16
"""Elements of the weights; smaller ones are in the processor's cache, where across is as near."""

_MARGIN = 2
"""So many times as many elements have to be transposed without it."""


class TurnedProducts(Kernels):
    """Products of a few rows with transposed weights."""

    def product(self, b: Builder, x: Value, y: Value, *, wide: DType, dtype: DType) -> Value:
        """See `Kernels.product`."""
        weight = _transposed(y) if x.dtype == wide == dtype and x.rank == 2 else None
        if weight is None or not _pays(x, weight):
            return super().product(b, x, y, wide=wide, dtype=dtype)
        small = b.stored(b.transpose(x, (1, 0)))
        turned = super().product(b, weight, small, wide=wide, dtype=dtype)
        return b.transpose(b.stored(turned), (1, 0))


def _transposed(y: Value) -> Value | None:
    """The matrix that this one is the transposition of; None if it is none."""
    origin = y.origin
    return origin.value if origin is not None and origin.permutation == (1, 0) else None


def _pays(x: Value, weight: Value) -> bool:
    rows, depth = x.shape
    # One row is a product with a vector, for which the compiler has a loop of its own.
    return (
        rows > 1
        and weight.size >= _LEAST
        and _MARGIN * rows * (depth + weight.shape[0]) <= weight.size
    )
