"""Elementwise expressions, by a call (`aten/native/expression.c`).

XLA's CPU compiler makes a loop of each. Its threads sleep between loops, and waking one takes
longer than most loops last (`loops`); the call's threads are awake. It goes through blocks that
stay in the first cache, so that memory is read and written once, as in a loop.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from pjrt_bridge.runtime import Client
from pjrt_bridge.stablehlo import Builder, TensorType, Value
from pjrt_bridge.stablehlo.kernel_attributes import Expression, ExpressionRead, ExpressionStep
from pjrt_bridge.stablehlo.kernels import Kernels
from pjrt_bridge_cpu.aten.library import can_call

TARGET = "pjrt_bridge.expression.2"
"""Name of the custom call. Its number changes with what it is given."""

PORTABLE, AVX2, AVX512 = range(3)
"""The widest vectors that a call may use."""

OPERATIONS = (
    *("read", "number", "write", "round", "add", "add_number", "subtract", "subtract_from"),
    *("multiply", "multiply_number", "multiply_add", "divide", "maximum", "minimum"),
    *("equal", "not_equal", "less", "less_equal", "select", "negate", "abs"),
    *("exponential", "log", "logistic", "tanh", "erf", "sqrt", "rsqrt"),
    *("sine", "cosine", "power", "log_plus_one", "exponential_minus_one"),
    *("sign", "floor", "ceil", "round_nearest_even", "and", "or", "not"),
)
"""The operations of steps, in the order of `native/expression.h`."""

WRITE = OPERATIONS.index("write")

LARGEST = 1 << 19
"""Elements up to which an expression of costly functions is a call. The threads of XLA's compiler
are awake for most of a larger loop, which keeps its numbers in registers: a call takes 1.6 of its
time for a GELU of 2 million elements, and 0.9 for one of 400,000."""

MOST_WORK = 3 << 20
"""Elements times operations up to which an expression is a call, for the same reason: it takes 2.1
of the loop's time for five operations and 4 million elements, and 0.9 for a million. With several
results, or results in the memory of arguments, as those of optimizers, it is always a call: loops
would compute and read again what the results share."""

_FREE = ("read", "number")
"""Steps that are no operations."""

_SLOW_IN_LOOPS = ("sine", "cosine")
"""Operations that are always a call: a loop takes twice its time, of 30,000 elements and of
3 million."""

COSTS = {"erf": 3, "exponential": 1, "log": 2, "logistic": 1, "tanh": 2}
"""Of functions, about; those of an expression are costly together from 2 on."""

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
    ) -> Sequence[Value] | None:
        """See `Kernels.expression`."""
        if not self.can_compute or _is_loop(expression):
            return None
        return compute(b, expression, operands)


def _is_loop(expression: Expression) -> bool:
    """Whether the loop of XLA's compiler takes less time than the call."""
    if any(step.operation in _SLOW_IN_LOOPS for step in expression.steps):
        return False
    if sum(COSTS.get(step.operation, 0) for step in expression.steps) >= 2:
        return expression.size > LARGEST
    work = expression.size * sum(step.operation not in _FREE for step in expression.steps)
    is_shared = len(expression.results) > 1 or bool(expression.overwritten)
    return work > MOST_WORK and not is_shared


def can_compute(client: Client) -> bool:
    """Register the custom call with a client's plugin; whether it makes the call."""
    return can_call(client, TARGET, "COMPUTE_EXPRESSION")


def compute(
    b: Builder, expression: Expression, operands: Sequence[Value], *, vectors: int = AVX512
) -> Sequence[Value] | None:
    """The results of the custom call; None where an expression holds too many values at once.

    Args:
        b: the builder to emit into.
        expression: its steps.
        operands: see `Kernels.expression`.
        vectors: the widest that it may use.
    """
    config = described(expression, vectors)
    if config is None:
        return None
    results = [TensorType(result.shape, result.dtype) for result in expression.results]
    return b.custom_call(
        TARGET, operands, results, backend_config=config, in_place=expression.overwritten
    )


def described(
    expression: Expression, vectors: int, *, is_written: bool = True
) -> dict[str, Any] | None:
    """An expression as calls take it; None where it holds too many values at once.

    Registers of numbers are filled once, for all blocks, if there are enough registers.

    Args:
        expression: its steps.
        vectors: the widest that may be used.
        is_written: results are written; else the last step computes the only one.
    """
    found = _allocated(expression, held_numbers=True) or _allocated(expression, held_numbers=False)
    if found is None:
        return None
    numbers, steps = found
    steps = [step for step in steps if is_written or step[0] != WRITE]
    return {
        "numbers": np.array([*numbers, 0.0], np.float64),
        "reads": np.array([_way(read) for read in expression.reads], np.int64).reshape(-1),
        "steps": np.array(steps, np.int64).reshape(-1),
        "vectors": np.array([vectors], np.int64),
    }


def _way(read: ExpressionRead) -> list[int]:
    """How an operand is read, as the call takes it."""
    dims = [*read.dims, *((0, 0),) * (Expression.MOST_DIMS - len(read.dims))]
    return [read.first, len(read.dims), *(number for dim in dims for number in dim)]


def _allocated(
    expression: Expression, *, held_numbers: bool
) -> tuple[list[float], list[tuple[int, ...]]] | None:
    """The numbers and the steps as the call takes them; None where there are too few registers.

    Args:
        expression: its steps.
        held_numbers: a register that has a number gets no other value.
    """
    numbers: list[float] = []
    try:
        return numbers, list(_steps(expression, numbers, held_numbers=held_numbers))
    except _NoRegister:
        return None


class _NoRegister(Exception):
    """All registers hold values that later steps need."""


def _steps(
    expression: Expression, numbers: list[float], *, held_numbers: bool
) -> Iterator[tuple[int, ...]]:
    """The steps as the call takes them; numbers are added to the list.

    A value has a register from its step to the last one that reads it. No step computes the
    register that it reads. What takes the memory of an array is written behind the last step that
    reads it: a register may be the array itself.
    """
    steps = _joined(expression)
    last = {at: index for index in sorted(steps) for at in steps[index].operands}
    readers = {
        int(step.number): last[index]
        for index, step in steps.items()
        if step.operation == "read" and index in last
    }
    written: dict[int, list[int]] = {}
    for number, result in enumerate(expression.results):
        array = expression.overwritten.get(number)
        index = max(result.step, readers.get(array, 0) if array is not None else 0)
        written.setdefault(index, []).append(number)
        last[result.step] = max(last.get(result.step, 0), index)
    numbered = [index for index in sorted(steps) if steps[index].operation == "number"]
    own = dict(zip(numbered, reversed(range(REGISTERS)), strict=False)) if held_numbers else {}
    free = list(reversed(range(REGISTERS - len(own))))
    held: dict[int, int] = {}
    for index in sorted(steps):
        if index not in own and not free:
            raise _NoRegister
        step = steps[index]
        to = own[index] if index in own else free.pop()
        sources = [held[at] for at in step.operands]
        if step.operation == "read":
            sources = [int(step.number)]
        elif step.operation in ("number", *_WITH_NUMBER.values()):
            sources.append(len(numbers))
            numbers.append(step.number)
        first, second, third = (*sources, 0, 0, 0)[:3]
        yield (OPERATIONS.index(step.operation), to, first, second, third)
        held[index] = to
        ended = {index, *step.operands}
        for number in written.get(index, ()):
            at = expression.results[number].step
            yield (WRITE, number, held[at], 0, 0)
            ended.add(at)
        free += [held.pop(at) for at in ended if last[at] == index and at not in own]


_WITH_NUMBER = {"add": "add_number", "multiply": "multiply_number", "subtract": "subtract_from"}
"""Operations of which one side may be a number, and what they are then."""


def _joined(expression: Expression) -> dict[int, ExpressionStep]:
    """The steps that lead to the results, by index, with numbers and sums made a part of others."""
    steps = dict(enumerate(expression.steps))
    for index, step in steps.items():
        steps[index] = _with_number(step, steps)
    results = [result.step for result in expression.results]
    uses = Counter([*results, *(at for step in steps.values() for at in step.operands)])
    for index, step in steps.items():
        if step.operation == "add":
            for product, other in (step.operands, step.operands[::-1]):
                found = steps[product]
                if found.operation == "multiply" and uses[product] == 1:
                    steps[index] = ExpressionStep("multiply_add", (*found.operands, other))
                    break
    needed: set[int] = set()
    pending = [*results]
    while pending:
        index = pending.pop()
        if index not in needed:
            needed.add(index)
            pending += steps[index].operands
    return {index: steps[index] for index in needed}


def _with_number(step: ExpressionStep, steps: Mapping[int, ExpressionStep]) -> ExpressionStep:
    """A step that takes a number itself, where one side is one."""
    if step.operation not in _WITH_NUMBER:
        return step
    left, right = step.operands
    name = _WITH_NUMBER[step.operation]
    if steps[left].operation == "number":
        return ExpressionStep(name, (right,), steps[left].number)
    if steps[right].operation != "number":
        return step
    if step.operation == "subtract":
        # To subtract a number is to add its opposite.
        return ExpressionStep("add_number", (left,), -steps[right].number)
    return ExpressionStep(name, (left,), steps[right].number)
