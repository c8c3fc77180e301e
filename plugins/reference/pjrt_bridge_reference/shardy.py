"""Shardy's operations, which say how to divide a program, and what is left of one that is not.

JAX writes them into every program, also for a single device.
"""

from __future__ import annotations

from typing import Any

from pjrt_bridge.stablehlo import Mesh, Program, bindings, modules
from pjrt_bridge.stablehlo.partitioning.partition import partitioned
from pjrt_bridge.stablehlo.partitioning.propagation import closed
from pjrt_bridge.stablehlo.sharding.mesh import axes_in
from pjrt_bridge_reference.caller_arguments import invalid, unimplemented

_SHARDING = "sdy.sharding"
_HINTS = ("sdy.sharding_constraint", "sdy.propagation_barrier")


def without_shardy(program: Program) -> Program:
    """The program without meshes and hints; whether shardings are obeyed is asked elsewhere.

    Raises:
        Status: UNIMPLEMENTED; an operation that computes something.
    """
    if b"sdy" not in program.bytecode():
        return program
    module = bindings.parse(program.bytecode(), f"program {program.name!r}")
    for operation in modules.operations(module):
        if not operation.name.startswith("sdy."):
            _remove_attributes(operation)
            continue
        if operation.name in _HINTS:
            operation.results[0].replace_all_uses_with(operation.operands[0])
        elif operation.name != "sdy.mesh":
            raise unimplemented(f"{operation.name} in a program of one partition")
        operation.erase()
    return Program.from_module(module)


def divided_by_shardy(program: Program, partitions: int) -> Program:
    """The program of each partition; a program without a mesh is that already.

    Raises:
        ProgramError: Shardy cannot divide it.
        Status: INVALID_ARGUMENT; a mesh of another number of devices.
    """
    if b"sdy" not in program.bytecode():
        return program
    module = bindings.parse(program.bytecode(), f"program {program.name!r}")
    meshes = [Mesh.of(axes_in(text)) for text in modules.meshes(module).values()]
    for mesh in meshes:
        if mesh.size != partitions:
            raise invalid(f"{mesh} has {mesh.size} devices, the program {partitions} partitions")
    return partitioned(closed(program)) if meshes else program


def _remove_attributes(operation: Any) -> None:
    ir = bindings.load().ir
    attributes = operation.attributes
    if _SHARDING in attributes:
        del attributes[_SHARDING]
    for name in ("arg_attrs", "res_attrs"):
        if name not in attributes:
            continue
        kept = [
            {item.name: item.attr for item in attached if item.name != _SHARDING}
            for attached in attributes[name]
        ]
        context = operation.context
        attributes[name] = ir.ArrayAttr.get(
            [ir.DictAttr.get(each, context) for each in kept], context
        )
