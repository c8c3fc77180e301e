"""Which operations the reference interpreter can run; any other ends the process or is wrong.

Collective operations are known to it in programs of several processes only, see
`pjrt_bridge.stablehlo.interpret.interpreter.evaluate_parallel`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

from pjrt_bridge.errors import ProgramError
from pjrt_bridge.stablehlo import bindings

_OPERATIONS = """
    abs add after_all and atan2 bitcast_convert broadcast_in_dim case cbrt ceil clamp compare
    complex concatenate constant convert convolution cosine count_leading_zeros divide dot_general
    dynamic_slice dynamic_update_slice exponential exponential_minus_one fft floor gather
    get_dimension_size get_tuple_element if imag iota is_finite log log_plus_one logistic maximum
    minimum multiply negate not optimization_barrier or pad popcnt power real reduce
    reduce_precision reduce_window remainder reshape return reverse round_nearest_afz
    round_nearest_even rsqrt scatter select select_and_scatter shift_left shift_right_arithmetic
    shift_right_logical sign sine slice sort sqrt subtract tan tanh transpose triangular_solve tuple
    while xor
"""
_COLLECTIVES = """
    all_gather all_reduce all_to_all collective_broadcast collective_permute partition_id
    reduce_scatter replica_id
"""
# The interpreter ends the process at any operation that is not among these.
_KNOWN = frozenset(_OPERATIONS.split())
_KNOWN_IN_PARALLEL = _KNOWN | frozenset(_COLLECTIVES.split())


def check(operations: Iterable[Any], *, processes: int | None = None, here: bool = True) -> None:
    """Refuse what ends the process in the interpreter, or what it computes wrongly.

    Args:
        operations: of a module, bodies included.
        processes: how many run the module in parallel; None where it runs alone.
        here: on this machine, which needs a thread for each process.

    Raises:
        ProgramError: the first operation that is not known, or has a known defect.
    """
    known = _KNOWN if processes is None else _KNOWN_IN_PARALLEL
    for operation in operations:
        dialect, _, op = operation.name.partition(".")
        if dialect in ("func", "builtin"):
            continue
        if dialect != "stablehlo" or op not in known:
            raise ProgramError(f"interpreter: {_named(operation)} is not known to it")
        defect = _DEFECTS[op](operation) if op in _DEFECTS else None
        if defect is None and processes is not None:
            defect = _group_defect(operation, processes, here=here)
        if defect is not None:
            types = ", ".join(str(operand.type) for operand in operation.operands)
            raise ProgramError(f"interpreter: {operation.name} {defect}; found {types}")


def threads() -> int:
    """Processes that the interpreter runs at once: LLVM's pool has a thread for each core."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def has_collectives(operations: Iterable[Any]) -> bool:
    """Whether a module communicates with other processes, or asks for its own number."""
    names = {f"stablehlo.{name}" for name in _COLLECTIVES.split()}
    return any(operation.name in names for operation in operations)


def _named(operation: Any) -> str:
    attributes = operation.attributes
    target = "call_target_name"
    return f"{operation.name}{f' @{attributes[target].value}' if target in attributes else ''}"


def _group_defect(operation: Any, processes: int, *, here: bool) -> str | None:
    """Why processes would wait for others until the interpreter ends the whole process."""
    op = operation.name.removeprefix("stablehlo.")
    if op not in _COLLECTIVES.split() or op in ("partition_id", "replica_id"):
        return None
    if here and processes > threads():
        return f"connects {processes} processes, the interpreter has {threads()} threads"
    if not _runs_once(operation):
        return "is not in main itself: if it runs more than once, the interpreter mixes up its data"
    name = "source_target_pairs"
    if name not in operation.attributes:
        name = "replica_groups"
    if name not in operation.attributes:
        return None
    # -1 fills up groups of different sizes.
    members = [int(member) for row in _rows(operation.attributes[name]) for member in row]
    named = [member for member in members if member != -1]
    if name == "replica_groups" and named and sorted(named) != list(range(processes)):
        return f"has groups {named}, which are not the {processes} processes"
    if any(not 0 <= member < processes for member in named):
        return f"names processes {named}, there are {processes}"
    return None


def _runs_once(operation: Any) -> bool:
    parent = operation.parent
    return bool(parent.name == "func.func" and parent.attributes["sym_name"].value == "main")


def _rows(attribute: Any) -> list[list[int]]:
    rows, columns = bindings.load().ir.ShapedType(attribute.type).shape
    flat = [int(value) for value in attribute] if len(attribute) else []
    return [flat[row * columns : (row + 1) * columns] for row in range(rows)]


def _shape(value: Any) -> list[int]:
    return list(bindings.load().ir.ShapedType(value.type).shape)


def _compare_defect(operation: Any) -> str | None:
    attributes = operation.attributes
    total = "compare_type" in attributes and "TOTALORDER" in str(attributes["compare_type"])
    return "ignores TOTALORDER" if total else None


def _convert_defect(operation: Any) -> str | None:
    scale = "f8E8M0FNU" in str(operation.operands[0].type)
    return "reads the NaN of f8E8M0FNU as infinity" if scale else None


def _convolution_defect(operation: Any) -> str | None:
    attribute = operation.attributes["dimension_numbers"]
    numbers = bindings.load().stablehlo.ConvDimensionNumbers(attribute)
    if numbers.output_feature_dimension >= numbers.output_batch_dimension:
        return None
    return "ends the process where the output's feature dimension comes before its batch dimension"


def _dot_defect(operation: Any) -> str | None:
    attribute = operation.attributes["dot_dimension_numbers"]
    numbers = bindings.load().stablehlo.DotDimensionNumbers(attribute)
    shape = _shape(operation.operands[0])
    empty = any(shape[dim] == 0 for dim in numbers.lhs_contracting_dimensions)
    return "ends the process on a sum over nothing" if empty else None


def _fft_defect(operation: Any) -> str | None:
    double = all("f64" in str(operand.type) for operand in operation.operands)
    return None if double else "ends the process in single precision"


def _triangular_solve_defect(operation: Any) -> str | None:
    return "ends the process on batches" if len(_shape(operation.operands[0])) > 2 else None


_DEFECTS = {
    "compare": _compare_defect,
    "convert": _convert_defect,
    "convolution": _convolution_defect,
    "dot_general": _dot_defect,
    "fft": _fft_defect,
    "triangular_solve": _triangular_solve_defect,
}
