"""Custom calls as StableHLO: bodies for kernels that only a plugin knows.

With them the reference interpreter runs programs with custom calls, to compare a plugin's results
with, and to try lowerings without a device.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pjrt_bridge import dtypes
from pjrt_bridge.errors import ProgramError
from pjrt_bridge.stablehlo import bindings, modules
from pjrt_bridge.stablehlo.builder.builder import Builder
from pjrt_bridge.stablehlo.builder.values import Value
from pjrt_bridge.stablehlo.program.program import Program
from pjrt_bridge.stablehlo.types import TensorType

CallBody = Callable[..., Value | Sequence[Value]]
"""A function of a `Builder` and the operands of a custom call that emits what the call computes.

It returns the one result, or a sequence of them.
"""


def expand(program: Program, bodies: Mapping[str, CallBody]) -> Program:
    """The program with functions of StableHLO in the place of custom calls.

    Args:
        program: with static shapes; other custom calls in it stay.
        bodies: by the target of the custom call.

    Raises:
        ProgramError: a body gives other results than the call, or an operand is no ranked tensor
            of static shape.
        UnsupportedDtype: an operand of an element type that PJRT does not have.
    """
    if not program.custom_calls & bodies.keys():
        return program
    module = bindings.parse(program.bytecode(), f"program {program.name!r}")
    for number, operation in enumerate(modules.operations(module)):
        if operation.name == "stablehlo.custom_call":
            target = operation.attributes["call_target_name"].value
            if target in bodies:
                _replace(module, operation, f"{target}.{number}", bodies[target])
    return Program.from_module(module)


def _replace(module: Any, call: Any, name: str, body: CallBody) -> None:
    ir, context = bindings.load().ir, module.context
    function = _function(name, body, [_type(operand.type) for operand in call.operands])
    copied = ir.Module.parse(function.bytecode(), context)
    main = modules.find_main(copied).operation
    wanted, found = [result.type for result in call.results], list(main.opview.type.results)
    if found != wanted:
        raise ProgramError(
            f"body of custom call {name!r}: found the results {', '.join(map(str, found))}, "
            f"expected {', '.join(map(str, wanted))}"
        )
    main.attributes["sym_name"] = ir.StringAttr.get(name, context)
    main.attributes["sym_visibility"] = ir.StringAttr.get("private", context)
    main.detach_from_parent()
    module.body.append(main)
    new = ir.Operation.create(
        "func.call",
        wanted,
        list(call.operands),
        {"callee": ir.FlatSymbolRefAttr.get(name, context)},
        loc=call.location,
        ip=ir.InsertionPoint(call),
    )
    for old, result in zip(call.results, new.results, strict=True):
        old.replace_all_uses_with(result)
    call.erase()


def _function(name: str, body: CallBody, operands: Sequence[TensorType]) -> Program:
    builder = Builder(operands, name=name)
    results = body(builder, *builder.parameters)
    return builder.finish([results] if isinstance(results, Value) else results)


def _type(kind: Any) -> TensorType:
    parts = modules.tensor_parts(kind)
    if parts is None or None in parts[0]:
        raise ProgramError(f"custom call: operand {kind} is no ranked tensor of static shape")
    sizes, _, element = parts
    return TensorType(tuple(size or 0 for size in sizes), dtypes.from_stablehlo(element))
