"""Convolutions with groups in the batch, as ones with groups of features.

XLA's partitioner gives wrong numbers for groups in the batch where devices have parts of the sum,
as they have of the gradient of the weights of a convolution with groups.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pjrt_bridge.stablehlo import bindings, modules
from pjrt_bridge.stablehlo.program.program import Program

_BATCH, _FEATURE = "batch_group_count", "feature_group_count"


def without_batch_groups(program: Program) -> Program:
    """The same program, with groups of features in the place of groups in the batch."""
    code = program.bytecode()
    if b"convolution" not in code:
        return program
    module = bindings.parse(code, f"program {program.name!r}")
    found = [
        operation
        for operation in modules.operations(module)
        if operation.name == "stablehlo.convolution" and operation.attributes[_BATCH].value > 1
    ]
    for operation in found:
        _move_groups(operation)
    return Program.from_module(module) if found else program


def _move_groups(operation: Any) -> None:
    """Move the groups of a convolution from the batch of its left side to the features."""
    numbers = bindings.load().stablehlo.ConvDimensionNumbers(
        operation.attributes["dimension_numbers"]
    )
    batch, feature = numbers.input_batch_dimension, numbers.input_feature_dimension
    groups = operation.attributes[_BATCH]
    count = groups.value
    left = operation.operands[0]
    shape = list(left.type.shape)
    split = [*shape[:batch], count, shape[batch] // count, *shape[batch + 1 :]]
    # The dimension of the groups stands at `batch` now, and others behind it have moved up.
    order = [dim for dim in range(len(split)) if dim != batch]
    order.insert(feature, batch)
    value = _made(operation, "reshape", left, split)
    value = _made(operation, "transpose", value, [split[dim] for dim in order], order)
    shape[batch] //= count
    shape[feature] *= count
    operation.operands[0] = _made(operation, "reshape", value, shape)
    operation.attributes[_FEATURE], operation.attributes[_BATCH] = (
        groups,
        operation.attributes[_FEATURE],
    )


def _made(
    before: Any, name: str, operand: Any, shape: Sequence[int], order: Sequence[int] | None = None
) -> Any:
    """The result of a new operation in front of another one."""
    ir = bindings.load().ir
    context = before.context
    with context, before.location:
        kind = ir.RankedTensorType.get(list(shape), operand.type.element_type)
        attributes = {} if order is None else {"permutation": ir.DenseI64ArrayAttr.get(list(order))}
        made = ir.Operation.create(
            f"stablehlo.{name}",
            results=[kind],
            operands=[operand],
            attributes=attributes,
            ip=ir.InsertionPoint(before),
        )
    return made.results[0]
