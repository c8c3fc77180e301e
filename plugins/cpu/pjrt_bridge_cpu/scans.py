"""Running sums, products and logarithms of sums of exponentials, by a call (`aten/native/scan.c`).

XLA's CPU compiler makes windows of them, or several passes over memory.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from pjrt_bridge.dtypes import DType
from pjrt_bridge.runtime import Client
from pjrt_bridge.stablehlo import Builder, Value
from pjrt_bridge.stablehlo.kernel_attributes import Scan
from pjrt_bridge.stablehlo.kernels import Kernels
from pjrt_bridge_cpu.aten.library import can_call
from pjrt_bridge_cpu.combining import in_three

TARGET = "pjrt_bridge.scan.1"
"""Name of the custom call. Its number changes with what it is given."""

LEAST = 1 << 10
"""Elements from which on it is worth a call."""

HOWS: tuple[Scan, ...] = ("sum", "prod", "logsumexp")
"""By their numbers in the call."""

_FLOATS = ("float32", "bfloat16")
_TAKEN: Mapping[Scan, tuple[str, ...]] = {
    "sum": (*_FLOATS, "float64", "int32", "int64"),
    "prod": (*_FLOATS, "float64"),
    "logsumexp": _FLOATS,
}
"""Names of element types."""


class Scans(Kernels):
    """Running combinations, each array read and written once.

    Attributes:
        can_scan: the client's plugin makes the custom call.
    """

    can_scan = False

    def scan(
        self, b: Builder, how: Scan, x: Value, dim: int, *, backward: bool = False
    ) -> Value | None:
        """See `Kernels.scan`."""
        if x.reverses is not None and x.reverses.dims == {dim}:
            # As the gradient of a sum is written; a caller that reverses the result gets it as is.
            found = self.scan(b, how, x.reverses.value, dim, backward=not backward)
            return None if found is None else b.reverse(found, (dim,))
        if not (self.can_scan and x.size >= LEAST and takes(how, x.dtype)):
            return super().scan(b, how, x, dim, backward=backward)
        return b.reshape(scan_along(b, how, in_three(b, x, dim), backward=backward), x.shape)


def can_scan(client: Client) -> bool:
    """Register the custom call with a client's plugin; whether it makes the call."""
    return can_call(client, TARGET, "SCAN_ALONG")


def takes(how: Scan, dtype: DType) -> bool:
    """Whether the call combines elements of a type."""
    return dtype.name in _TAKEN[how]


def scan_along(b: Builder, how: Scan, x: Value, *, backward: bool) -> Value:
    """The custom call.

    Args:
        b: the builder to emit into.
        how: elements are combined.
        x: (outer, length, inner), of a type that `takes` accepts.
        backward: from the last element of the length to the first.

    Returns:
        Of the type and shape of `x`.
    """
    config = {"how": np.array([HOWS.index(how), backward], np.int64)}
    return b.custom_call(TARGET, [x], [x.type], backend_config=config)[0]
