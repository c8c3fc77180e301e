"""Small programs: those that run on the thread that calls them, if their products are calls.

A plugin may run a program on the thread that calls it where its compiler finds little to compute,
calls aside (`Kernels.inline_flops`). To hand it to another thread, which sleeps, takes longer than
a small program runs. So there the products become calls, whatever their sizes, and so does what is
computed element by element (`expressions`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from pjrt_bridge.stablehlo.builder.builder import Builder, Value
from pjrt_bridge.stablehlo.builder.rewriting import MOVING, Operation, is_static
from pjrt_bridge.stablehlo.kernels import Kernels
from pjrt_bridge.stablehlo.known_numbers import dtype_of, users
from pjrt_bridge.stablehlo.operation_kinds import COPYING, ELEMENTWISE, named
from pjrt_bridge.stablehlo.patterns import operations
from pjrt_bridge.stablehlo.patterns.following import DTYPES, STEPS
from pjrt_bridge.stablehlo.patterns.reading import product_of, shape_of

LEAST = 1 << 9
"""Elements from which on what is computed element by element, or reduced, is a call anyway."""

MOST_WORK = 1 << 21
"""Multiplications of all products: with more, the other thread is worth its time."""

MOST_CALLS = 24
"""Calls of fewer elements than `LEAST`. As many take as long as to wake a thread."""

_COPYING = named(COPYING | {"custom_call", "optimization_barrier"}) | {"func.return"}
"""Operations that compute nothing, as a compiler counts."""

_ELEMENTWISE = named(ELEMENTWISE) | set(STEPS)
"""Operations that compute one number for each element, whether expressions have them or not."""


class SmallPrograms:
    """Tells which programs are small, and computes their products.

    Args:
        kernels: of the target.
    """

    def __init__(self, kernels: Kernels) -> None:
        self._kernels = kernels
        self._known: dict[Any, bool] = {}

    def has(self, operation: Operation) -> bool:
        """Whether an operation is in a small program, by what this was before any rewrite."""
        if not self._kernels.inline_flops:
            return False
        function = operation.handle.parent
        function = getattr(function, "operation", function)
        if function not in self._known:
            self._known[function] = function.name == "func.func" and _is_small(
                function, self._kernels.inline_flops
            )
        return self._known[function]

    def product(self, b: Builder, operation: Operation) -> Sequence[Value] | None:
        """`dot_general` of a small program, by `Kernels.small_product`."""
        if not self.has(operation):
            return None
        return operations.product(self._kernels.small_product, b, operation)


def _is_small(function: Any, limit: int) -> bool:
    """Whether a function computes little, but only without its products and expressions."""
    (block,) = function.regions[0].blocks
    work = computed = left = calls = 0
    for view in block.operations:
        operation = view.operation
        if not is_static(operation):
            return False
        if operation.name in _COPYING:
            continue
        if operation.name == "stablehlo.dot_general" and _is_real(operation.results[0]):
            work += _multiplications(operation)
        elif _may_be_in_expression(operation):
            size = _size(operation.results[0])
            computed += size
            calls += size < LEAST and _is_read_by_others(operation)
        elif operation.name in _ELEMENTWISE:
            left += _size(operation.results[0])
        elif operation.name == "stablehlo.reduce":
            size = _size(operation.operands[0])
            left += size if size < LEAST else 0
        else:
            return False
        if left >= limit or work > MOST_WORK or calls > MOST_CALLS:
            return False
    return work + computed + left >= limit


def _size(value: Any) -> int:
    return math.prod(shape_of(value))


def _is_real(value: Any) -> bool:
    return str(dtype_of(value)) in DTYPES


def _multiplications(operation: Any) -> int:
    """The multiplications of a `dot_general`."""
    found = product_of(operation.results[0])
    if found is None:
        return MOST_WORK + 1
    shape = shape_of(operation.operands[0])
    return _size(operation.results[0]) * math.prod(shape[dim] for dim in found.summed[0])


def _may_be_in_expression(operation: Any) -> bool:
    values = (*operation.operands, *operation.results)
    return operation.name in STEPS and all(_is_real(value) for value in values)


def _is_read_by_others(operation: Any) -> bool:
    """Whether what is no part of an expression reads a result."""
    return any(user.name not in STEPS for user in _readers(operation.results[0]))


def _readers(value: Any) -> Iterator[Any]:
    """What reads a value, also where it was moved."""
    for user in users(value):
        if user.name in MOVING:
            yield from _readers(user.results[0])
        else:
            yield user
