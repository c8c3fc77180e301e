"""Reductions of elementwise expressions by a call (`aten/native/reduce.c`).

XLA's CPU compiler adds the elements of a row one after the other, and makes windows of many rows,
before which it writes all that is reduced to memory.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from pjrt_bridge import dtypes
from pjrt_bridge.runtime import Client
from pjrt_bridge.stablehlo import Builder, TensorType, Value
from pjrt_bridge.stablehlo.kernel_attributes import Expression, Reduction
from pjrt_bridge.stablehlo.kernels import Kernels
from pjrt_bridge_cpu.aten.library import can_call
from pjrt_bridge_cpu.expressions import AVX512, described

TARGET = "pjrt_bridge.reduce.2"
"""Name of the custom call. Its number changes with what it is given."""

LEAST = 1 << 9
"""Elements from which on they are worth a call."""

LEAST_ROW = 24
"""Elements of a row, of which each is reduced to one, from which on they are worth a call."""

LEAST_COLUMNS = 1 << 9
"""The same of the columns that are reduced at once."""

HOWS: tuple[Reduction, ...] = ("sum", "max", "min")
"""What calls compute, in the order of `native/reduce.h`."""

_FLOAT32 = dtypes.of("float32")


class ReducedExpressions(Kernels):
    """Reductions of what is computed as it is reduced.

    Attributes:
        can_reduce: the client's plugin makes the custom call.
    """

    can_reduce = False

    def reduces_last(self, reduction: Reduction, x: Value) -> bool:
        """See `Kernels.reduces_last`."""
        is_large = x.size >= LEAST and x.dtype == _FLOAT32
        return self.can_reduce and is_large and reduction in HOWS

    def reduced_expression(
        self,
        b: Builder,
        expression: Expression,
        reduction: Reduction,
        sizes: tuple[int, int, int],
        operands: Sequence[Value],
    ) -> Value | None:
        """See `Kernels.reduced_expression`."""
        _, length, inner = sizes
        is_wide = length * inner >= (LEAST_COLUMNS if inner > 1 else LEAST_ROW)
        takes = self.can_reduce and reduction in HOWS and math.prod(sizes) >= LEAST
        return reduce(b, expression, reduction, sizes, operands) if takes and is_wide else None


def can_reduce(client: Client) -> bool:
    """Register the custom call with a client's plugin; whether it makes the call."""
    return can_call(client, TARGET, "REDUCE_EXPRESSION")


def reduce(
    b: Builder,
    expression: Expression,
    reduction: Reduction,
    sizes: tuple[int, int, int],
    operands: Sequence[Value],
    *,
    vectors: int = AVX512,
) -> Value | None:
    """The custom call; None where an expression holds too many values at once.

    Args:
        b: the builder to emit into.
        expression: its steps.
        reduction: "sum", "max" or "min".
        sizes: see `Kernels.reduced_expression`.
        operands: see there.
        vectors: the widest that it may use.
    """
    config = described(expression, vectors, is_written=False)
    if config is None:
        return None
    config["reduced"] = np.array([*sizes, HOWS.index(reduction)], np.int64)
    result = TensorType((sizes[0] * sizes[2],), _FLOAT32)
    return b.custom_call(TARGET, operands, [result], backend_config=config)[0]
