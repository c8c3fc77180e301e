"""Recurrent layers and their gradients, all steps by one call (`aten/native/recurrence.c`).

A loop of XLA's starts several small loops at each step, and reads the weight of the state in the
order in which PyTorch has it. The call lays the weight out once, and computes the gates of a cell
as soon as it has their products. Half precision is computed in float32, and rounded once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from pjrt_bridge import dtypes
from pjrt_bridge.runtime import Client
from pjrt_bridge.stablehlo import Builder, TensorType, Value
from pjrt_bridge.stablehlo.kernel_attributes import Recurrence
from pjrt_bridge.stablehlo.kernels import Kernels, convert
from pjrt_bridge_cpu.aten.library import can_call

FORWARD, BACKWARD = "pjrt_bridge.recurrence.1", "pjrt_bridge.recurrence_backward.1"
"""Names of the custom calls. Their number changes with what they are given."""

KINDS = ("tanh", "relu", "gru", "lstm")
"""The kinds of cells, in the order of `native/recurrence.h`."""

LEAST = 4
"""Steps from which on it is worth to lay the weight out."""

_SAVED = {"gru": 4, "lstm": 4}

_FLOAT32, _INT64 = map(dtypes.of, ("float32", "int64"))
_TAKEN = frozenset(map(dtypes.of, ("float32", "bfloat16", "float16")))


class Recurrences(Kernels):
    """Recurrent layers in float32 and in half precision.

    Attributes:
        can_recur: the client's plugin makes the custom calls.
    """

    can_recur = False

    def recurrence(
        self,
        b: Builder,
        given: Value,
        states: tuple[Value, Value],
        weight: Value,
        bias: Value | None,
        count: Value | None,
        how: Recurrence,
        *,
        save: bool,
    ) -> tuple[Value, Value, Value] | None:
        """See `Kernels.recurrence`."""
        offset = b.full((0,), 0, _FLOAT32) if bias is None else bias
        operands = (given, *states, weight, offset)
        if not (self.can_recur and _takes(given, operands)):
            return None
        size = states[0].shape[1]
        cells = size if how.kind == "lstm" else 0
        saved = _SAVED.get(how.kind, 0) * size if save else 0
        shapes = [(*given.shape[:2], width) for width in (size, cells, saved)]
        outputs, memory, kept = _call(b, FORWARD, operands, count, shapes, how)
        return outputs, memory, kept

    def recurrence_gradients(
        self,
        b: Builder,
        of_results: tuple[Value, Value],
        results: tuple[Value, Value, Value],
        states: tuple[Value, Value],
        weight: Value,
        count: Value | None,
        how: Recurrence,
    ) -> tuple[Value, Value, Value, Value] | None:
        """See `Kernels.recurrence_gradients`."""
        operands = (*of_results, *results, *states, weight)
        if not (self.can_recur and _takes(results[0], operands)):
            return None
        steps, batch, _ = results[0].shape
        width = weight.shape[0]
        shapes = [
            (steps, batch, width),
            (steps, batch, width if how.kind == "gru" else 0),
            *(state.shape for state in states),
        ]
        of_given, of_products, *of_states = _call(b, BACKWARD, operands, count, shapes, how)
        return of_given, of_products, of_states[0], of_states[1]


def _takes(steps: Value, operands: Sequence[Value]) -> bool:
    """Whether the calls do it, and are worth it."""
    return steps.shape[0] >= LEAST and all(item.dtype in _TAKEN for item in operands)


def can_recur(client: Client) -> bool:
    """Register the custom calls with a client's plugin; whether it makes them."""
    targets = {FORWARD: "RUN_RECURRENCE", BACKWARD: "RUN_RECURRENCE_BACKWARD"}
    return all(can_call(client, target, name) for target, name in targets.items())


def _call(
    b: Builder,
    target: str,
    operands: Sequence[Value],
    count: Value | None,
    shapes: Sequence[Sequence[int]],
    how: Recurrence,
) -> list[Value]:
    """A custom call; its results have the type of the first operand."""
    wide = [convert(b, item, _FLOAT32) for item in operands]
    # The first operand of both has all steps.
    steps = b.full((), wide[0].shape[0], _INT64) if count is None else convert(b, count, _INT64)
    numbers = [KINDS.index(how.kind), how.reverse]
    config: dict[str, Any] = {"how": np.array(numbers, np.int64)}
    types = [TensorType(tuple(shape), _FLOAT32) for shape in shapes]
    found = b.custom_call(target, [*wide, steps], types, backend_config=config)
    return [convert(b, item, operands[0].dtype) for item in found]
