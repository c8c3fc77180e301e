"""Products of matrices of complex numbers, as one of real numbers.

XLA's CPU compiler has products of real numbers alone; for complex ones it makes a loop over rows,
columns and what is summed, without vectors.
"""

from __future__ import annotations

from pjrt_bridge import dtypes
from pjrt_bridge.dtypes import DType
from pjrt_bridge.stablehlo import Builder, Value
from pjrt_bridge.stablehlo.kernels import Kernels

NARROWEST = 32
"""Rows, columns and what is summed, from which on it is worth the loops around the product."""

_PARTS = {
    dtypes.of("complex64"): dtypes.of("float32"),
    dtypes.of("complex128"): dtypes.of("float64"),
}


class ComplexProducts(Kernels):
    """`[a b] @ [[c d], [-d c]]` for `(a + bi) @ (c + di)`: its real and its imaginary part."""

    def product(self, b: Builder, x: Value, y: Value, *, accumulator: DType, dtype: DType) -> Value:
        """See `Kernels.product`."""
        part = _PARTS.get(dtype)
        if part is None or x.dtype != dtype or not _pays(x, y):
            return super().product(b, x, y, accumulator=accumulator, dtype=dtype)
        rows, columns = x.rank - 2, x.rank - 1
        left = b.concatenate([b.real(x), b.imag(x)], columns)
        real, imag = b.real(y), b.imag(y)
        above = b.concatenate([real, imag], columns)
        below = b.concatenate([b.negate(imag), real], columns)
        right = b.concatenate([above, below], rows)
        found = self.product(b, left, right, accumulator=part, dtype=part)
        zeros, width = [0] * x.rank, y.shape[-1]
        begin, end = [*zeros[:-1], width], [*found.shape[:-1], width]
        return b.complex_(b.slice(found, zeros, end), b.slice(found, begin, found.shape))


def _pays(x: Value, y: Value) -> bool:
    return x.size > 0 and min(*x.shape[-2:], y.shape[-1]) >= NARROWEST
