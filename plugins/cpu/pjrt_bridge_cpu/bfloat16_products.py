"""Products in bfloat16, whose left side the compiler must not transpose.

XLA's CPU plugin of API 0.81 has a product of row-major bfloat16 that sums in float32. Its compiler
chooses that before it simplifies transposes. A transpose that the simplification moves to the left
side, as of `select(mask, transpose(x), 0)`, is then merged into the product, and the call fails:
"Unsupported element type for DotThunk::Execute: BF16 x BF16 = F32".
"""

from __future__ import annotations

from pjrt_bridge import dtypes
from pjrt_bridge.dtypes import DType
from pjrt_bridge.stablehlo import Builder, Value
from pjrt_bridge.stablehlo.kernels import Kernels

_BFLOAT16, _FLOAT32 = map(dtypes.of, ("bfloat16", "float32"))


class Bfloat16Products(Kernels):
    """Hides how the left side was computed. A product reads it from memory in any case."""

    def product(self, b: Builder, x: Value, y: Value, *, accumulator: DType, dtype: DType) -> Value:
        """See `Kernels.product`."""
        if x.dtype == _BFLOAT16 and accumulator == _FLOAT32:
            (x,) = b.optimization_barrier([x])
        return super().product(b, x, y, accumulator=accumulator, dtype=dtype)
