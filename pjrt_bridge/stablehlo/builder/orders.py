"""Memory order of a value's dimensions, where the program leaves the layout to the compiler.

A compiler keeps the order of a transposition or of a call with stated layouts through elementwise
operations. Calls that have to state an order, such as of functions that are not inlined, take it
from here, so that nothing is copied into another order and back.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from pjrt_bridge.stablehlo.builder.values import Value
from pjrt_bridge.wrong_arguments import checked

_MAX_VISITED = 64
"""Operations that are visited; beyond these the order is taken for row-major."""

_NOT_ELEMENTWISE = frozenset(
    ("cholesky", "convolution", "dot_general", "fft", "gather", "triangular_solve")
)
"""Operations whose result may have the shape of an operand, but not its order."""

_PARTS = frozenset(("dynamic_slice", "pad", "slice"))
"""Operations that take over the order of their first operand, whatever its sizes are."""

Order = tuple[int, ...]
"""Dimensions from the outermost in memory to the innermost."""


@checked
def inverse_order(order: Sequence[int]) -> Order:
    """The permutation that undoes another one."""
    return tuple(sorted(range(len(order)), key=order.__getitem__))


def row_major_steps(shape: Sequence[int]) -> tuple[int, ...]:
    """How far the elements of a row-major array are from each other in each dimension."""
    return tuple(math.prod(shape[dim + 1 :]) for dim in range(len(shape)))


@checked
def memory_order(value: Value) -> Order:
    """The order that a compiler is expected to choose for a value; row-major where nothing says."""
    return _order(value._handle, {})


@checked
def is_in_memory(value: Value) -> bool:
    """Whether a value is an argument or a call's result, and not what loops compute as they go."""
    operation = operation_of(value._handle)
    return operation is None or operation.name in ("stablehlo.custom_call", "func.call")


def _order(handle: Any, known: dict[Any, Order]) -> Order:
    row_major = tuple(range(len(handle.type.shape)))
    operation = operation_of(handle)
    if operation is None:
        return row_major
    if operation.name == "stablehlo.custom_call":
        return _stated(operation, handle.result_number) or row_major
    if operation not in known and len(known) < _MAX_VISITED:
        known[operation] = row_major
        known[operation] = _computed(operation, handle.type.shape, known) or row_major
    return known.get(operation, row_major)


def _computed(operation: Any, shape: list[int], known: dict[Any, Order]) -> Order | None:
    """The order that an operation takes over from its operands."""
    if operation.name == "stablehlo.transpose":
        (operand,) = operation.operands
        # Dimension i of the result is dimension permutation[i] of the operand.
        permutation = list(operation.attributes["permutation"])
        return tuple(permutation.index(dim) for dim in _order(operand, known))
    name = operation.name.removeprefix("stablehlo.")
    if name == operation.name or name in _NOT_ELEMENTWISE or operation.regions:
        return None
    if name in _PARTS:
        return _order(operation.operands[0], known)
    # A tuple has no shape.
    alike = (item for item in operation.operands if getattr(item.type, "shape", None) == shape)
    found = (_order(item, known) for item in alike)
    return next((order for order in found if order != tuple(range(len(shape)))), None)


def operation_of(handle: Any) -> Any | None:
    """The operation that computes a value; None for an argument."""
    owner = getattr(handle, "owner", None)
    operation = getattr(owner, "operation", owner)
    return operation if hasattr(operation, "operands") else None


def _stated(operation: Any, result: int) -> Order | None:
    """The order that a call states for a result."""
    if "result_layouts" not in operation.attributes:
        return None
    return tuple(int(dim) for dim in np.array(operation.attributes["result_layouts"][result])[::-1])
