"""A few operations, run one by one on eager tensors: cheaper than a call of a function."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pjrt_bridge.tf_interop import compat, xla_traces
from pjrt_bridge.tf_interop.capture import CapturedFunction, FlatOperation
from pjrt_bridge.tf_interop.split import Part

_MOST = 5
"""Operations up to which a function call costs more."""
_HARMLESS = frozenset({"AssignVariableOp", "LookupTableFindV2", "ReadVariableOp"})
"""Stateful operations that have no effect beyond their results."""


def steps_of(captured: CapturedFunction, part: Part) -> OrderedOperations | None:
    """The steps of a part; None where they are many, or belong into a function."""
    operations = [captured.operations[index] for index in part.operations]
    counted = [item for item in operations if item.type != "Const"]
    if len(counted) > _MOST:
        return None
    steps = []
    for operation in counted:
        attributes = compat.attributes(operation.made)
        if attributes is None or not _is_plain(operation):
            return None
        steps.append(_OperationRun(operation.type, operation.inputs, operation.outputs, attributes))
    known = {value: captured.captures[value] for value in part.held}
    for operation in operations:
        if operation.type == "Const":
            known[operation.outputs[0]] = compat.constant(operation.made)
    return OrderedOperations(part.inputs, part.outputs, known, steps)


def _is_plain(operation: FlatOperation) -> bool:
    if xla_traces.is_rewritten(operation.made):
        return False
    return operation.type in _HARMLESS or not operation.made.op_def.is_stateful


@dataclass(frozen=True, slots=True)
class _OperationRun:
    type: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    attributes: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class OrderedOperations:
    """Operations in running order.

    Attributes:
        inputs: values that a call brings.
        outputs: values that it gives.
        known: values that are the same in every call.
        steps: the operations.
    """

    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    known: dict[int, Any]
    steps: Sequence[_OperationRun]

    def __call__(self, inputs: Sequence[Any]) -> list[Any]:
        """The outputs for the inputs.

        Raises:
            tf.errors.OpError: as TensorFlow does.
        """
        values = self.known.copy()
        values.update(zip(self.inputs, inputs, strict=True))
        for step in self.steps:
            given = [values[value] for value in step.inputs]
            made = compat.run(step.type, given, step.attributes, len(step.outputs))
            values.update(zip(step.outputs, made, strict=True))
        return [values[value] for value in self.outputs]
