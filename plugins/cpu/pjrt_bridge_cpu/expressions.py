"""Elementwise expressions, by a call (`aten/native/expression.c`).

XLA's CPU compiler makes a loop of each. Its threads sleep between loops, and waking one takes longer
than most loops last (`loops`); the call's threads are awake. It goes through blocks that stay in the
first cache, so that memory is read and written once, as in a loop.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from pjrt_bridge.runtime import Client
from pjrt_bridge.stablehlo import Builder, TensorType, Value
from pjrt_bridge.stablehlo.kernel_attributes import Expression, ExpressionStep
from pjrt_bridge.stablehlo.kernels import Kernels
from pjrt_bridge_cpu.aten.library import can_call

TARGET = "pjrt_bridge.expression.1"
"""Name of the custom call. Its number changes with what it is given."""

PORTABLE, AVX2, AVX512 = range(3)
"""The widest vectors that a call may use."""

OPERATIONS = (
    *("read", "number", "write", "round", "add", "subtract", "multiply", "divide", "maximum"),
    *("minimum", "equal", "not_equal", "less", "less_equal", "select", "negate", "abs"),
    *("exponential", "log", "logistic", "tanh", "erf", "sqrt", "rsqrt", "and", "or", "not"),
)
"""The operations of steps, in the order of `native/expression.h`."""

REGISTERS = 12
"""Values that are held at once, at most."""


class FusedExpressions(Kernels):
    """Elementwise expressions that are one call.

    Attributes:
        can_compute: the client's plugin makes the custom call.
    """

    can_compute = False

    def expression(
        self, b: Builder, expression: Expression, operands: Sequence[Value]
    ) -> Value | None:
        """See `Kernels.expression`."""
        if not self.can_compute:
            return None
        return compute(b, expression, operands)


def can_compute(client: Client) -> bool:
    """Register the custom call with a client's plugin; whether it makes the call."""
    return can_call(client, TARGET, "COMPUTE_EXPRESSION")


def compute(
    b: Builder, expression: Expression, operands: Sequence[Value], *, vectors: int = AVX512
) -> Value | None:
    """The custom call; None where an expression holds too many values at once.

    Args:
        b: the builder to emit into.
        expression: its steps.
        operands: see `Kernels.expression`.
        vectors: the widest that it may use.
    """
    numbers: list[float] = []
    try:
        steps = list(_steps(expression, numbers))
    except _NoRegister:
        return None
    config: dict[str, Any] = {
        "numbers": np.array([*numbers, 0.0], np.float64),
        "reads": np.array(
            [number for read in expression.reads for number in (read.inner, read.period)], np.int64
        ),
        "steps": np.array(steps, np.int64).reshape(-1),
        "vectors": np.array([vectors], np.int64),
    }
    result = TensorType(expression.shape, expression.dtype)
    return b.custom_call(TARGET, operands, [result], backend_config=config)[0]


class _NoRegister(Exception):
    """All registers hold values that later steps need."""


def _steps(expression: Expression, numbers: list[float]) -> Iterator[tuple[int, ...]]:
    """The steps as the call takes them; numbers are added to the list.

    A value has a register from its step to the last one that reads it. No step computes the register
    that it reads.
    """
    last = {at: index for index, step in enumerate(expression.steps) for at in step.operands}
    last[expression.result] = len(expression.steps)
    free = list(reversed(range(REGISTERS)))
    held: dict[int, int] = {}
    for index, step in enumerate(expression.steps):
        if index not in last:
            continue
        if not free:
            raise _NoRegister
        to = free.pop()
        sources = _sources(step, held, numbers)
        yield (OPERATIONS.index(step.operation), to, *sources)
        held[index] = to
        free += [held.pop(at) for at in set(step.operands) if last[at] == index]
    yield (OPERATIONS.index("write"), 0, held[expression.result], 0, 0)


def _sources(
    step: ExpressionStep, held: dict[int, int], numbers: list[float]
) -> tuple[int, int, int]:
    if step.operation == "read":
        return int(step.number), 0, 0
    if step.operation == "number":
        numbers.append(step.number)
        return len(numbers) - 1, 0, 0
    first, second, third = (*(held[at] for at in step.operands), 0, 0, 0)[:3]
    return first, second, third
