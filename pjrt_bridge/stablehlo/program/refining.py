"""Programs with dynamic parameters, made static: PJRT compiles no others.

StableHLO carries sizes through a program once its parameters have them, and what a framework
asserted about sizes is decided then. Parameters that only choose what is computed, such as
`jax.export`'s index of the platform, become constants first.

Source: the StableHLO repository, docs/generated/stablehlo_passes.md (`stablehlo-refine-arguments`,
`stablehlo-refine-shapes`, `stablehlo-canonicalize-dynamism`); for `shape_assertion`, JAX's page on
shape polymorphism.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pjrt_bridge.errors import ProgramError
from pjrt_bridge.stablehlo import bindings, composites, modules
from pjrt_bridge.stablehlo.program.program import Program

_ASSERTION = "shape_assertion"


def refine(
    program: Program,
    shapes: Sequence[Sequence[int]],
    constants: Mapping[int, int] | None = None,
) -> Program:
    """The program for parameters of these shapes.

    Args:
        program: its own sizes, where it has them, have to agree.
        shapes: one for each parameter that becomes no constant.
        constants: values for scalar integer parameters, by index; these parameters go.

    Raises:
        ProgramError: another number of shapes, one that does not agree, no scalar integer for a
            constant, an assertion of the program that does not hold for these sizes, or sizes that
            depend on data.
    """
    module = bindings.parse(program.bytecode(), f"program {program.name!r}")
    composites.inline(module)
    main = modules.find_main(module)
    for index in sorted(constants or {}, reverse=True):
        modules.bind_parameter(main, index, (constants or {})[index])
    types = _types(program, main, shapes)
    bindings.run_passes(
        module,
        f"stablehlo-refine-arguments{{types={','.join(types)}}}" if types else "",
        "stablehlo-refine-shapes",
        "func.func(stablehlo-canonicalize-dynamism)",
        # Branches on values that are constants by now, and what only they use.
        "canonicalize",
        "symbol-dce",
    )
    for operation in modules.operations(module):
        if operation.name == "stablehlo.custom_call" and _target(operation) == _ASSERTION:
            _remove_assertion(program, operation)
    bindings.run_passes(module, "canonicalize")
    refined = Program.from_module(module)
    # Raises for parameters or results that are still dynamic.
    _ = refined.signature
    return refined


def _types(program: Program, main: Any, shapes: Sequence[Sequence[int]]) -> list[str]:
    inputs = main.type.inputs
    if len(shapes) != len(inputs):
        raise ProgramError(
            f"program {program.name!r}: found shapes for {len(shapes)} parameters, "
            f"expected {len(inputs)}"
        )
    types = []
    for index, (kind, shape) in enumerate(zip(inputs, shapes, strict=True)):
        declared, element = _parts(index, kind)
        if len(shape) != len(declared) or any(
            size is not None and size != wanted
            for size, wanted in zip(declared, shape, strict=True)
        ):
            raise ProgramError(
                f"program {program.name!r}: parameter {index}: found shape {list(shape)}, "
                f"expected {kind}"
            )
        types.append(f"tensor<{''.join(f'{size}x' for size in shape)}{element}>")
    return types


def _parts(index: int, kind: Any) -> tuple[list[int | None], str]:
    found = modules.tensor_parts(kind)
    if found is None:
        raise ProgramError(f"parameter {index}: type {kind} is no ranked tensor")
    return found[0], found[2]


def _target(operation: Any) -> str:
    return str(operation.attributes["call_target_name"].value)


def _remove_assertion(program: Program, assertion: Any) -> None:
    """Remove an assertion that holds.

    Raises:
        ProgramError: it does not, or that is not known before the program runs.
    """
    values = [modules.constant_number(operand) for operand in assertion.operands]
    message = str(assertion.attributes["error_message"].value)
    for place, value in enumerate(values[1:]):
        message = message.replace(f"{{{place}}}", "?" if value is None else str(value))
    if values[0] is None:
        raise ProgramError(
            f"program {program.name!r}: an assertion depends on data, not on sizes alone: {message}"
        )
    if not values[0]:
        raise ProgramError(f"program {program.name!r}: {message}")
    assertion.erase()
