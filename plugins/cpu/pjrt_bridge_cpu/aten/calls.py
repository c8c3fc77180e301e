"""The custom call that runs an operator of ATen on a program's buffers, as `native` reads it."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pjrt_bridge.stablehlo import Builder, TensorType, Value, inverse_order, memory_order
from pjrt_bridge_cpu.aten.operators import REQUIRED, Operator, SchemaParameter

TARGET = "pjrt_bridge.aten.3"
"""Name of the custom call. Its number changes with what the words of a call mean, because programs
with such calls are kept on disk."""

_NONE, _OPERAND, _RESULT, _WORD, _WORDS, _SOME = range(6)


@dataclass(frozen=True)
class Out:
    """The place of a result, as an argument that an operator writes into.

    Attributes:
        index: of the results.
    """

    index: int = 0


@dataclass(frozen=True)
class Cut:
    """Along which dimensions a call is cut into parts for several threads.

    Attributes:
        grain: the least length of a part.
        operands: the dimension by argument; one that is absent is needed whole by every part.
        results: the dimension by result.
        pieces: parts for each thread. Where a part costs nothing of its own there may be several:
            others do what one that wakes late has not begun.
    """

    grain: int
    operands: Mapping[str, int]
    results: Sequence[int]
    pieces: int = 1


@dataclass(frozen=True)
class Load:
    """The load of a call, on which its time depends and by which its gain is measured (`gains`).

    Attributes:
        kind: of computation, such as `topk`; sizes of one kind are in one unit.
        size: elements, multiplications, or scores of a head.
    """

    kind: str
    size: int


@dataclass(frozen=True)
class KernelCall:
    """A use of an operator.

    Attributes:
        operator: which.
        arguments: by name; values, `Out`, numbers, lists of them, or None. What is left out has
            its default.
        results: types of the results.
        returns: by value that the operator returns, the result it is copied to; None: to none.
        orders: how operands lie in memory, by argument; others as they come.
        result_orders: how results do; None: row-major.
        cut: how it may be divided; None: not at all.
        load: what its gain is measured by; None: it is made wherever it is right.
    """

    operator: Operator
    arguments: Mapping[str, Any]
    results: Sequence[TensorType]
    returns: Sequence[int | None] = (None,)
    orders: Mapping[str, Sequence[int]] = field(default_factory=dict)
    result_orders: Sequence[Sequence[int]] | None = None
    cut: Cut | None = None
    load: Load | None = None


def emit(b: Builder, call: KernelCall) -> tuple[Value, ...]:
    """Write a call; its results.

    Raises:
        TypeError: an argument is missing, or the operator has none of that name.
    """
    names = {parameter.name for parameter in call.operator.parameters}
    for name in call.arguments:
        if name not in names:
            raise TypeError(f"{call.operator} has no argument {name!r}")
    operands: dict[str, Value] = {}
    stack: list[int] = []
    for parameter in call.operator.parameters:
        argument = call.arguments.get(parameter.name, parameter.default)
        if argument is REQUIRED:
            raise TypeError(f"{call.operator}: argument {parameter.name!r} is missing")
        if isinstance(argument, Value):
            stack += [_SOME] * parameter.optional
            stack += (_OPERAND, len(operands))
            operands[parameter.name] = argument
        else:
            stack += _words(parameter, argument)
    orders = [call.orders.get(name) or memory_order(value) for name, value in operands.items()]
    results = call.result_orders
    orders += [tuple(range(item.rank)) for item in call.results] if results is None else results
    cuts, grain = [-1] * len(orders), (0, 1)
    if call.cut is not None:
        stated = [call.cut.operands.get(name, -1) for name in operands] + list(call.cut.results)
        cuts = [
            -1 if dim < 0 else tuple(order).index(dim)
            for dim, order in zip(stated, orders, strict=True)
        ]
        grain = call.cut.grain, call.cut.pieces
    config = {
        "name": call.operator.name,
        "overload": call.operator.overload,
        # An array without elements cannot be written.
        "orders": _numbers([dim for order in orders for dim in order] or [0]),
        "stack": _numbers(stack),
        "returns": _numbers([-1 if result is None else result for result in call.returns]),
        "cuts": _numbers(cuts),
        "grain": _numbers(grain),
    }
    # All arrays are row-major, and transposed around the call: between two calls that cancels out,
    # where compilers would copy arrays with other layouts into the one that they prefer.
    taken, given = orders[: len(operands)], orders[len(operands) :]
    found = b.custom_call(
        TARGET,
        [_turned(b, value, order) for value, order in zip(operands.values(), taken, strict=True)],
        [
            TensorType(tuple(item.shape[dim] for dim in order), item.dtype)
            for item, order in zip(call.results, given, strict=True)
        ],
        backend_config=config,
        operand_layouts=[tuple(reversed(range(len(order)))) for order in taken],
        result_layouts=[tuple(reversed(range(len(order)))) for order in given],
    )
    return tuple(
        _turned(b, value, inverse_order(order)) for value, order in zip(found, given, strict=True)
    )


def _turned(b: Builder, x: Value, order: Sequence[int]) -> Value:
    return x if tuple(order) == tuple(range(x.rank)) else b.transpose(x, order)


def _numbers(values: Sequence[int]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.array(values, np.int64)


def _words(parameter: SchemaParameter, argument: Any) -> list[int]:
    """An argument that is no value."""
    if argument is None:
        return [_NONE]
    some = [_SOME] * parameter.optional
    if isinstance(argument, Out):
        return [*some, _RESULT, argument.index]
    if parameter.kind.endswith("]"):
        return [*some, _WORDS, len(argument), *map(int, argument)]
    if parameter.kind == "float":
        return [*some, _WORD, *struct.unpack("<q", struct.pack("<d", argument))]
    return [*some, _WORD, int(argument)]
