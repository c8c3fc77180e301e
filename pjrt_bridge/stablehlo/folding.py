"""Positions that depend on no argument, computed ahead by the reference interpreter.

A compiler may compute such a value in several loops, and in some of them round a product and a sum
as one. Where one loop decides by it which elements are read, and another one with which weight, the
result is wrong: so it is with resized images of TensorFlow on XLA's CPU compiler, wherever a
position is a whole number but for rounding. As a constant a value is the same everywhere.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from pjrt_bridge import dtypes
from pjrt_bridge.errors import ProgramError
from pjrt_bridge.stablehlo import bindings, modules
from pjrt_bridge.stablehlo.builder import constants
from pjrt_bridge.stablehlo.builder.constants import Array
from pjrt_bridge.stablehlo.interpret.interpreter import evaluate
from pjrt_bridge.stablehlo.program.program import Program

_MOST_ELEMENTS = 1 << 14
"""Elements of a value up to which it is computed ahead; the interpreter takes 1 us for each."""

_STEPS = """
    abs add and broadcast_in_dim ceil clamp compare concatenate constant convert divide dot_general
    floor iota maximum minimum multiply negate not or reduce reshape reverse round_nearest_afz
    round_nearest_even select slice subtract transpose
"""
_FOLDED = frozenset(f"stablehlo.{name}" for name in _STEPS.split())

# What processors compute as one instruction, which rounds once.
_PRODUCT = "stablehlo.multiply"
_SUMS = frozenset(("stablehlo.add", "stablehlo.subtract"))


def fold(module: Any) -> None:
    """Make constants of values that are products and sums of floats, and depend on no argument.

    Args:
        module: changed in place; what the interpreter cannot compute stays as it is.
    """
    known = _known(module)
    chosen = [operation for operation, steps in known.items() if _is_read(operation, steps, known)]
    try:
        values = _evaluated(list(known), chosen) if chosen else ()
    except ProgramError:
        return
    for operation, value in zip(chosen, values, strict=True):
        _replace(operation, value)


def _known(module: Any) -> dict[Any, frozenset[str]]:
    """The operations that depend on no argument, in order, with the steps on floats to each."""
    ir = bindings.load().ir
    found: dict[Any, frozenset[str]] = {}

    def visit(operation: Any) -> Any:
        makers = [operand.owner for operand in operation.operands]
        if (
            operation.name in _FOLDED
            and _is_small(operation.results[0].type)
            and all(maker in found for maker in makers)
        ):
            steps = frozenset().union(*(found[maker] for maker in makers))
            element = str(ir.ShapedType(operation.results[0].type).element_type)
            found[operation] = steps | {operation.name} if "f" in element else steps
        return ir.WalkResult.ADVANCE

    modules.walk(module.operation, visit, outer_first=True)
    return found


def _is_small(type: Any) -> bool:
    parts = modules.tensor_parts(type)
    sizes = [0] if parts is None else [size or 0 for size in parts[0]]
    return 0 < math.prod(sizes) <= _MOST_ELEMENTS


def _is_read(operation: Any, steps: frozenset[str], known: Mapping[Any, object]) -> bool:
    """Whether a value may be rounded in two ways, and what depends on arguments reads it."""
    return (
        _PRODUCT in steps
        and not _SUMS.isdisjoint(steps)
        and any(use.owner.operation not in known for use in operation.results[0].uses)
    )


def _evaluated(known: Sequence[Any], chosen: Sequence[Any]) -> Sequence[Array]:
    """The values of some operations among those that depend on no argument.

    Raises:
        ProgramError: the interpreter cannot compute one.
    """
    ir = bindings.load().ir
    context = known[0].context
    with context, ir.Location.unknown(context):
        alone = ir.Module.create()
        kind = ir.FunctionType.get([], [operation.results[0].type for operation in chosen])
        attributes = {
            "sym_name": ir.StringAttr.get("main"),
            "function_type": ir.TypeAttr.get(kind),
        }
        main = ir.Operation.create(
            "func.func", attributes=attributes, regions=1, ip=ir.InsertionPoint(alone.body)
        )
        block = ir.Block.create_at_start(main.regions[0], [])
        copies: dict[Any, Any] = {}
        for operation in known:
            copy = operation.clone(ip=ir.InsertionPoint(block))
            for index, operand in enumerate(operation.operands):
                copy.operands[index] = copies[operand]
            copies[operation.results[0]] = copy.results[0]
        results = [copies[operation.results[0]] for operation in chosen]
        ir.Operation.create("func.return", [], results, ip=ir.InsertionPoint(block))
    return evaluate(Program.from_module(alone))


def _replace(operation: Any, value: Array) -> None:
    ir = bindings.load().ir
    result = operation.results[0]
    attribute = constants.dense(value, dtypes.from_numpy(value.dtype), result.type)
    made = ir.Operation.create(
        "stablehlo.constant",
        [result.type],
        attributes={"value": attribute},
        loc=operation.location,
        ip=ir.InsertionPoint(operation),
    )
    result.replace_all_uses_with(made.results[0])
