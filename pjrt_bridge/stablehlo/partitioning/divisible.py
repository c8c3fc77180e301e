"""Operations in the forms that XLA's partitioner divides rightly.

It gives wrong numbers for convolutions with groups in the batch where devices have parts of the
sum, as they have of the gradient of the weights of a convolution with groups; for convolutions
whose spatial dimensions are divided, with many shardings of the other side; and for a scatter at
positions that divide into unequal parts. That was seen with the CPU plugin of PJRT API 0.81.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pjrt_bridge.stablehlo import bindings, modules
from pjrt_bridge.stablehlo.program.program import Program
from pjrt_bridge.stablehlo.sharding.mesh import axes_in

_BATCH, _FEATURE = "batch_group_count", "feature_group_count"


def divisible(program: Program) -> Program:
    """The same program for a partitioner.

    Groups in the batch are groups of features. Where Shardy divides the program, spatial dimensions
    of convolutions are whole, and those of a scatter's positions and updates that do not divide
    equally; other dimensions are divided as before.
    """
    code = program.bytecode()
    if b"convolution" not in code and b"scatter" not in code:
        return program
    module = bindings.parse(code, f"program {program.name!r}")
    mesh = next(iter(modules.meshes(module)), None)
    found = [item for item in modules.operations(module) if item.name == "stablehlo.convolution"]
    for operation in found:
        if operation.attributes[_BATCH].value > 1:
            _move_groups(operation)
        if mesh is not None:
            _keep_space_whole(operation, mesh)
    if mesh is not None:
        scatters = [item for item in modules.operations(module) if item.name == "stablehlo.scatter"]
        for operation in scatters:
            _keep_uneven_whole(operation, mesh, axes_in(modules.meshes(module)[mesh]))
        found += scatters
    return Program.from_module(module) if found else program


def _keep_uneven_whole(operation: Any, mesh: str, axes: Mapping[str, int]) -> None:
    """State of a scatter's positions and updates that nothing divides what does not divide."""
    ir = bindings.load().ir
    for at in range((len(operation.operands) - 1) // 2, len(operation.operands)):
        operand = operation.operands[at]
        shape = operand.type.shape
        whole = [dim for dim, size in enumerate(shape) if any(size % n for n in axes.values())]
        if whole:
            before = ir.InsertionPoint(operation)
            made = _constrained(operand, mesh, whole, before, operation.location)
            operation.operands[at] = made.results[0]


def _keep_space_whole(operation: Any, mesh: str) -> None:
    """State of both sides and the result that no axis divides their spatial dimensions."""
    numbers = _numbers(operation)
    sides = (numbers.input_spatial_dimensions, numbers.kernel_spatial_dimensions)
    for at, spatial in enumerate(sides):
        operand = operation.operands[at]
        before = bindings.load().ir.InsertionPoint(operation)
        operation.operands[at] = _constrained(
            operand, mesh, spatial, before, operation.location
        ).results[0]
    (result,) = operation.results
    after = bindings.load().ir.InsertionPoint.after(operation)
    spatial = numbers.output_spatial_dimensions
    made = _constrained(result, mesh, spatial, after, operation.location)
    result.replace_all_uses_except(made.results[0], made)


def _constrained(value: Any, mesh: str, whole: Sequence[int], where: Any, location: Any) -> Any:
    """A new operation: the value, some of whose dimensions nothing divides; the others are open."""
    ir = bindings.load().ir
    dims = ", ".join("{}" if dim in whole else "{?}" for dim in range(len(value.type.shape)))
    text = f"#sdy.sharding<@{mesh}, [{dims}]>"
    return ir.Operation.create(
        "sdy.sharding_constraint",
        results=[value.type],
        operands=[value],
        attributes={"sharding": ir.Attribute.parse(text, value.context)},
        ip=where,
        loc=location,
    )


def _numbers(operation: Any) -> Any:
    """Which dimension of a convolution's sides and result is which."""
    return bindings.load().stablehlo.ConvDimensionNumbers(operation.attributes["dimension_numbers"])


def _move_groups(operation: Any) -> None:
    """Move the groups of a convolution from the batch of its left side to the features."""
    numbers = _numbers(operation)
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
