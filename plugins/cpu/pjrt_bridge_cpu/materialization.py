"""Materialization: values that several loops read, written to memory once.

XLA's CPU compiler fuses an elementwise operation into all loops that read it, whatever that costs.
In a network with residual connections each loop then adds up all blocks before it: the time of a
BERT grew with the square of its layers.
"""

from __future__ import annotations

from pjrt_bridge.stablehlo import Builder, Value, inverse_order, memory_order
from pjrt_bridge.stablehlo.kernels import Kernels


class MaterializedValues(Kernels):
    """Materializes a value as the result of a function that is not inlined."""

    def materialize(self, b: Builder, x: Value, *, by_rows: bool = False) -> Value:
        """See `Kernels.materialize`."""
        row_major = tuple(range(x.rank))
        order = row_major if by_rows else memory_order(x)
        if order == row_major:
            return b.stored(x)
        # Arguments of a function lie row-major.
        turned = b.stored(b.transpose(x, order))
        return b.transpose(turned, inverse_order(order))
