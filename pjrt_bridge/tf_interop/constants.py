"""Inputs whose values XLA has to know to compile: sizes, axes, permutations.

`constant_inputs.json` lists for each operation the names of such inputs, as XLA's registry of
kernels has them (TensorFlow 2.21, `XlaOpRegistry::CompileTimeConstantInputs`).
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import tensorflow as tf

from pjrt_bridge.report.fallback_reason import FallbackReason
from pjrt_bridge.tf_interop import compat
from pjrt_bridge.tf_interop.capture import CapturedFunction, FlatOperation
from pjrt_bridge.tf_interop.split import Part

_SIZES = frozenset(
    {
        "Const",
        "Rank",
        "Shape",
        "ShapeN",
        "Size",
        "TensorListElementShape",
        "TensorListLength",
        "VariableShape",
    }
)
"""Operations whose results follow from shapes alone; a list's, from what made the list."""
_SMALL = 64
"""Elements of an input up to which the segment is compiled anew for each value of it."""


@cache
def _table() -> Mapping[str, Sequence[str]]:
    text = files(__package__).joinpath("constant_inputs.json").read_text()
    found: Mapping[str, Sequence[str]] = json.loads(text)
    return found


@dataclass(frozen=True)
class ConstantInputs:
    """The input values that a device segment has to know to be compiled.

    Attributes:
        values: inputs whose values are needed.
        fallback_reasons: for operations that need to know what only running the program would
            tell, by index.
    """

    values: tuple[int, ...]
    fallback_reasons: Mapping[int, FallbackReason]


def needs(captured: CapturedFunction, part: Part) -> ConstantInputs:
    """The inputs of a part whose values are needed to compile it."""
    maker = {
        value: captured.operations[index]
        for index in part.operations
        for value in captured.operations[index].outputs
    }
    found: set[int] = set()
    reasons: dict[int, FallbackReason] = {}
    for index in part.operations:
        operation = captured.operations[index]
        sources = _sources(_constant_inputs(operation), maker)
        if all(_is_small(captured, value) for value in sources):
            found |= sources
        else:
            reason = f"a size or an axis in it depends on data (node {operation.name})"
            reasons[index] = FallbackReason(operation.type, reason, "data", operation.source)
    return ConstantInputs(tuple(value for value in part.inputs if value in found), reasons)


def _sources(values: Iterable[int], maker: Mapping[int, FlatOperation]) -> set[int]:
    """The values from before the part that these are computed from."""
    waiting = list(values)
    seen = set(waiting)
    found = set()
    while waiting:
        value = waiting.pop()
        operation = maker.get(value)
        if operation is None:
            found.add(value)
        elif operation.type not in _SIZES:
            fresh = set(operation.inputs) - seen
            seen |= fresh
            waiting += fresh
    return found


def _is_small(captured: CapturedFunction, value: int) -> bool:
    """Whether a value can tell one compilation from another; those that are held are known."""
    tensor = captured.values[value]
    if value in captured.captures:
        return bool(tensor.dtype != tf.resource)
    count = tensor.shape.num_elements()
    return bool((tensor.dtype.is_integer or tensor.dtype.is_bool) and (count or 0) <= _SMALL)


def _constant_inputs(operation: FlatOperation) -> Iterator[int]:
    names = _needed_names(operation)
    if names:
        position = 0
        for argument in operation.made.op_def.input_arg:
            count = _count(operation.made, argument)
            if argument.name in names:
                yield from operation.inputs[position : position + count]
            position += count


def _needed_names(operation: FlatOperation) -> Collection[str]:
    """Names of the inputs whose values are needed.

    XLA has slices of known size that begin where the program says.
    """
    made = operation.made
    if operation.type == "Slice":
        size = compat.constant_value(made.inputs[2])
        if size is not None and (size >= 0).all():
            return ("size",)
    if operation.type == "StridedSlice" and _takes_points(made):
        return ("strides",)
    return _table().get(operation.type, ())


def _takes_points(made: Any) -> bool:
    """Whether each dimension of a slice is one index, or all there is."""
    count = made.inputs[1].shape.num_elements()
    if count is None:
        return False
    whole = made.get_attr("begin_mask") & made.get_attr("end_mask")
    known = whole | made.get_attr("shrink_axis_mask") | made.get_attr("new_axis_mask")
    known |= made.get_attr("ellipsis_mask")
    return all(known >> dimension & 1 for dimension in range(count))


def _count(made: Any, argument: Any) -> int:
    """How many tensors an input of an operation stands for."""
    if argument.number_attr:
        return int(made.get_attr(argument.number_attr))
    if argument.type_list_attr:
        return len(made.get_attr(argument.type_list_attr))
    return 1
