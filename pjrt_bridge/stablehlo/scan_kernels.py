"""Kernels of running combinations along a dimension; a part of `kernels.Kernels`."""

from __future__ import annotations

from pjrt_bridge.stablehlo.builder.builder import Builder, Value
from pjrt_bridge.stablehlo.kernel_attributes import Scan


class ScanKernels:
    """The portable kernels of running combinations."""

    def scan(
        self, b: Builder, how: Scan, x: Value, dim: int, *, backward: bool = False
    ) -> Value | None:
        """Emit a running combination as one kernel; None where there is none, as here.

        Args:
            b: the builder to emit into.
            how: elements are combined: by sums, products, or logarithms of sums of exponentials.
            x: numbers. Half precision is combined in float32 and rounded once for each element.
            dim: along which the elements are combined, each with all before it.
            backward: each with all behind it instead.

        Returns:
            Of the type and shape of `x`.
        """
        return None
