"""Elements of an array at positions along a dimension, by a call (`aten/native/gather.c`).

XLA's CPU compiler makes a table of the positions in all dimensions as it goes, divides to find the
place of each element, and copies whole slices one element at a time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from pjrt_bridge.runtime import Client
from pjrt_bridge.stablehlo import Builder, TensorType, Value, memory_order
from pjrt_bridge.stablehlo.kernels import Kernels
from pjrt_bridge_cpu.aten.library import can_call
from pjrt_bridge_cpu.combining import in_three, is_worth_joining, joined_positions

TARGET = "pjrt_bridge.gather.1"
"""Name of the custom call. Its number changes with what it is given."""

LEAST = 1 << 13
"""Elements of the result from which on it is worth a call."""

_POSITIONS = ("int32", "int64")


class GatheredElements(Kernels):
    """Elements that are read without a table of positions.

    Attributes:
        can_gather: the client's plugin makes the custom call.
    """

    can_gather = False

    def gather_at(self, b: Builder, x: Value, dim: int, index: Value) -> Value:
        """See `Kernels.gather_at`."""
        if not self._gathers(x, dim, index):
            return super().gather_at(b, x, dim, index)
        shape = (*x.shape[:dim], index.shape[dim], *x.shape[dim + 1 :])
        return b.reshape(gather(b, in_three(b, x, dim), in_three(b, index, dim)), shape)

    def gather_slices(
        self, b: Builder, x: Value, dims: Sequence[int], positions: Sequence[Value]
    ) -> Value:
        """See `Kernels.gather_slices`: dimensions that lie side by side are read as one."""
        first, behind = dims[0], dims[-1] + 1
        if is_worth_joining(x, dims):
            size = math.prod(x.shape[first:behind])
            line = b.reshape(x, (*x.shape[:first], size, *x.shape[behind:]))
            sizes = [x.shape[dim] for dim in dims]
            # The call itself moves a position along one dimension to the nearest.
            at = (
                positions[0]
                if len(dims) == 1
                else joined_positions(b, sizes, positions, nearest=True)
            )
            index = b.reshape(at, [at.size if d == first else 1 for d in range(line.rank)])
            if self._gathers(line, first, index):
                found = self.gather_along(b, line, first, index)
                return b.reshape(found, (*x.shape[:first], *at.shape, *x.shape[behind:]))
        return super().gather_slices(b, x, dims, positions)

    def _gathers(self, x: Value, dim: int, index: Value) -> bool:
        """Whether elements along a dimension are read by the call."""
        shape = (*x.shape[:dim], index.shape[dim], *x.shape[dim + 1 :])
        return (
            self.can_gather
            and x.dtype.bits >= (16 if x.dtype.is_float else 8)
            and index.dtype.name in _POSITIONS
            and math.prod(shape) >= LEAST
            and memory_order(x) == tuple(range(x.rank))
            and _is_whole(index.shape[:dim], x.shape[:dim])
            and _is_whole(index.shape[dim + 1 :], x.shape[dim + 1 :])
        )


def _is_whole(index: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    """Whether positions are the same along all of some dimensions, or along none."""
    return index == shape or math.prod(index) == 1


def can_gather(client: Client) -> bool:
    """Register the custom call with a client's plugin; whether it makes the call."""
    return can_call(client, TARGET, "GATHER_ALONG")


def gather(b: Builder, x: Value, index: Value) -> Value:
    """The custom call.

    Args:
        b: the builder to emit into.
        x: (outer, length, inner), of elements of whole bytes.
        index: int32 or int64, of the shape of the result, or 1 in the outer or inner dimension.

    Returns:
        (outer, count, inner).
    """
    (outer, _, inner), (_, count, _) = x.shape, index.shape
    result = TensorType((outer, count, inner), x.dtype)
    (found,) = b.custom_call(TARGET, [x, index], [result], backend_config={})
    return found
