"""Dividing a program by Shardy's own passes.

Plugins with a partitioner divide programs themselves, and better: theirs know the hardware. This is
for plugins without one, and for estimates of what a program costs where its devices are not there.
"""

from __future__ import annotations

from typing import Any

from pjrt_bridge.stablehlo import bindings, composites, modules
from pjrt_bridge.stablehlo.program.program import Program
from pjrt_bridge.wrong_arguments import checked

_RESHARDS = "sdy-insert-explicit-reshards{enable-full-version=true}"
_COLLECTIVES = f"func.func({_RESHARDS},sdy-reshard-to-collectives)"

_NAMES = """
    abs add and atan2 broadcast_in_dim cbrt ceil clamp compare complex constant convert cosine
    count_leading_zeros divide dot_general exponential exponential_minus_one floor imag is_finite
    log log_plus_one logistic maximum minimum multiply negate not or popcnt power real reduce
    reduce_precision remainder reshape return round_nearest_afz round_nearest_even rsqrt select
    shift_left shift_right_arithmetic shift_right_logical sign sine sqrt subtract tan tanh transpose
    xor
"""
_DIVISIBLE = frozenset(_NAMES.split())
"""Operations whose parts are the operation on parts, once Shardy has moved its operands."""


@checked
def partitioned(program: Program) -> Program:
    """The program that each device of a mesh runs, of one that Shardy divides.

    Parameters and results are shards, and collective operations connect the devices: partition `p`
    is the device at position `p` of the mesh. An operation of which Shardy makes no parts is
    computed by each device as a whole.

    Args:
        program: with closed shardings of parameters and results, as `shard` gives it.

    Raises:
        ProgramError: a body of a loop or branch is divided, or another thing that Shardy cannot do.
    """
    module = _propagated(program)
    _keep_whole(module)
    # The same array is gathered once.
    passes = (_COLLECTIVES, "cse", "sdy-convert-global-to-local", "sdy-drop-sharding-and-mesh")
    bindings.run_passes(module, *passes, "cse")
    return Program.from_module(module)


def with_collectives(program: Program) -> Any:
    """The module of a program that Shardy divides, with its collective operations.

    Each value has its whole shape. Its sharding is the attribute `sdy.sharding` of the operation
    that makes it, of a collective operation `out_sharding`.

    Args:
        program: with closed shardings of parameters and results, as `shard` gives it.

    Raises:
        ProgramError: Shardy cannot divide it.
    """
    module = _propagated(program)
    bindings.run_passes(module, _COLLECTIVES, "cse")
    return module


def _propagated(program: Program) -> Any:
    """The module of a program as one function, with a sharding of every value."""
    module = bindings.parse(program.bytecode(), f"program {program.name!r}")
    composites.inline(module)
    bindings.run_passes(module, "inline", "sdy-propagation-pipeline")
    return module


def _keep_whole(module: Any) -> None:
    """Give operations of which Shardy makes no parts whole operands and whole results."""
    main = modules.find_main(module)
    (symbol,) = modules.meshes(module)
    ir = bindings.load().ir
    for view in list(main.operation.regions[0].blocks[0].operations):
        operation = view.operation
        dialect, _, name = operation.name.partition(".")
        if dialect != "stablehlo" or name in _DIVISIBLE:
            continue
        for at, operand in enumerate(operation.operands):
            if (whole := _whole(symbol, [operand])) is not None:
                reshard = ir.Operation.create(
                    "sdy.reshard",
                    results=[operand.type],
                    operands=[operand],
                    attributes={
                        "sharding": ir.Attribute.parse(f"#sdy.sharding{whole}", operation.context)
                    },
                    ip=ir.InsertionPoint(operation),
                    loc=operation.location,
                )
                operation.operands[at] = reshard.results[0]
        whole = _whole(symbol, operation.results)
        if whole is not None:
            text = f"#sdy.sharding_per_value<[{whole}]>"
            operation.attributes["sdy.sharding"] = ir.Attribute.parse(text, operation.context)


def _whole(symbol: str, values: Any) -> str | None:
    """Shardings that divide nothing, as Shardy writes a list; None where a value is no tensor."""
    found = []
    for value in values:
        parts = modules.tensor_parts(value.type)
        if parts is None:
            return None
        found.append(f"<@{symbol}, [{', '.join(['{}'] * len(parts[0]))}]>")
    return ", ".join(found)
