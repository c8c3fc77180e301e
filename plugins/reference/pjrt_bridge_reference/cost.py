"""What a program costs, by its operations: an estimate, as every compiler's is."""

from __future__ import annotations

import math
from typing import Any

from pjrt_bridge.stablehlo import Program, bindings, modules

_NAMES = """
    bitcast_convert broadcast_in_dim case concatenate constant convert dynamic_slice
    dynamic_update_slice gather get_tuple_element if iota optimization_barrier pad reshape return
    reverse slice transpose tuple while
"""
_MOVING = frozenset(_NAMES.split())
"""Operations that compute nothing themselves."""


def estimate(program: Program) -> dict[str, float]:
    """Floating-point (and other arithmetic) operations, and bytes of arguments and results.

    The body of a loop counts once: how often it runs is not known.
    """
    module = bindings.parse(program.bytecode(), f"program {program.name!r}")
    operations = [op for op in modules.operations(module) if op.name.startswith("stablehlo.")]
    signature = program.signature
    arguments = sum(parameter.type.nbytes for parameter in signature.parameters)
    results = sum(result.type.nbytes for result in signature.results)
    return {
        "flops": float(sum(map(_flops, operations))),
        "bytes accessed": float(arguments + results),
        "operations": float(len(operations)),
    }


def _flops(operation: Any) -> int:
    name = operation.name.removeprefix("stablehlo.")
    if name in _MOVING or not operation.results:
        return 0
    size = _size(operation.results[0])
    if name == "dot_general":
        left, right = (_size(operand) for operand in operation.operands)
        # M*K * K*N = (M*N) * K^2, with the batch in all three of them.
        numbers = bindings.load().stablehlo.DotDimensionNumbers(
            operation.attributes["dot_dimension_numbers"]
        )
        shape = _shape(operation.operands[0])
        batch = math.prod(shape[dim] for dim in numbers.lhs_batching_dimensions)
        inner = math.isqrt(left * right // max(size * batch, 1))
        return 2 * size * inner
    if name in ("reduce", "reduce_window", "all_reduce", "sort", "scatter"):
        return sum(map(_size, operation.operands))
    return size


def _shape(value: Any) -> list[int]:
    ir = bindings.load().ir
    return list(ir.ShapedType(value.type).shape) if isinstance(value.type, ir.ShapedType) else []


def _size(value: Any) -> int:
    return math.prod(_shape(value))
