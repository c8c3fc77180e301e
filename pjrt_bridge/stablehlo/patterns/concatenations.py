"""Concatenations of arrays in memory, and of slices of them, that a target may copy as they lie."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pjrt_bridge.stablehlo.builder.builder import Builder, Value
from pjrt_bridge.stablehlo.builder.orders import is_in_memory, memory_order
from pjrt_bridge.stablehlo.builder.rewriting import Operation
from pjrt_bridge.stablehlo.kernels import Kernels
from pjrt_bridge.stablehlo.known_numbers import maker
from pjrt_bridge.stablehlo.patterns.reading import integers, shape_of

_READERS = (
    "func.call",
    "func.return",
    "stablehlo.convolution",
    "stablehlo.custom_call",
    "stablehlo.dot_general",
)
"""Operations that read an array from memory; others read a concatenation as it is computed."""


def joined(kernels: Kernels, b: Builder, operation: Operation) -> Sequence[Value] | None:
    """`concatenate` by `Kernels.join`, where at least 7 of 8 elements are in memory.

    The others are written there first, and not as the whole is computed.
    """
    if not _is_read_from_memory(operation.handle.results[0]):
        return None
    (dim,) = [int(operation.handle.attributes["dimension"])]
    found = [_part(item, dim) for item in operation.handle.operands]
    lengths = [end - begin for _, (begin, end) in found]
    written = [_is_in_memory(operation, array) for array, _ in found]
    if sum(n for n, known in zip(lengths, written, strict=True) if not known) > sum(lengths) / 8:
        return None
    arrays = [operation.value(array) for array, _ in found]
    if any(memory_order(array) != tuple(range(array.rank)) for array in arrays):
        return None
    made = kernels.join(b, arrays, [limits for _, limits in found], dim)
    return None if made is None else [made]


def _part(value: Any, dim: int) -> tuple[Any, tuple[int, int]]:
    """The array that a value is a slice of along a dimension, and its limits; else the value."""
    made = maker(value)
    if made is not None and made.name == "stablehlo.slice":
        (array,) = made.operands
        begin, end = integers(made, "start_indices"), integers(made, "limit_indices")
        others = [d for d in range(len(begin)) if d != dim]
        is_whole = all(not begin[d] and end[d] == shape_of(array)[d] for d in others)
        if is_whole and set(integers(made, "strides")) == {1}:
            return array, (begin[dim], end[dim])
    return value, (0, shape_of(value)[dim])


def _is_in_memory(operation: Operation, value: Any) -> bool:
    made = maker(value)
    while made is not None and made.name == "stablehlo.reshape":
        value = made.operands[0]
        made = maker(value)
    return is_in_memory(operation.value(value))


def _is_read_from_memory(value: Any) -> bool:
    readers = [use.owner for use in value.uses]
    return bool(readers) and all(
        _is_read_from_memory(reader.results[0])
        if reader.name == "stablehlo.reshape"
        else reader.name in _READERS
        for reader in (getattr(item, "operation", item) for item in readers)
    )
