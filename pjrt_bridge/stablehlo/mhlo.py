"""Conversion of modules with MHLO in them, as TensorFlow exports them, to plain StableHLO."""

from __future__ import annotations

import re
from typing import Any

from pjrt_bridge.errors import ProgramError
from pjrt_bridge.stablehlo import bindings, folding, modules
from pjrt_bridge.stablehlo.precision import Precisions, state
from pjrt_bridge.stablehlo.program.program import Program

_COPY = "mhlo.copy"
_DEPRECATED = frozenset({"stablehlo.create_token", "stablehlo.dot", "stablehlo.einsum"})
"""Deprecated operations, which fewer plugins know than their replacements."""
_FUNCTIONS = frozenset({"acos", "acosh", "asin", "asinh", "atanh", "cosh", "erf", "sinh"})
"""Functions of one argument that MHLO and CHLO have, but not StableHLO."""
_ALIASES = "mhlo.input_output_alias"
_ALIAS = re.compile(r"parameter_number = (\d+).*?output_index = array<i64(?:: (\d+))?>")


def from_tensorflow(
    bytecode: bytes, precisions: Precisions | None = None
) -> tuple[Program, list[tuple[int, int]]]:
    """A program that TensorFlow's XLA bridge wrote in this process.

    MHLO's attributes, which are only hints to a compiler, and its copies are dropped; its functions
    become those of CHLO; deprecated operations of StableHLO are replaced; positions are computed
    ahead (`pjrt_bridge.stablehlo.folding`). The result can be written as a portable artifact, which
    every plugin reads.

    Args:
        bytecode: of a module of StableHLO and MHLO; it is trusted.
        precisions: that its products and convolutions are to state; None: as TensorFlow wrote them.

    Returns:
        The program, and pairs of a parameter and the result that is its new value.

    Raises:
        ProgramError: it cannot be read, or has operations of MHLO that nothing else has.
    """
    module = bindings.parse(bytecode, "TensorFlow's program")
    attributes = module.operation.attributes
    text = str(attributes[_ALIASES]) if _ALIASES in attributes else ""
    # The result of a program with one result has no index.
    aliases = [(int(parameter), int(result or 0)) for parameter, result in _ALIAS.findall(text)]
    if any(operation.name in _DEPRECATED for operation in modules.operations(module)):
        bindings.run_passes(module, "func.func(stablehlo-legalize-deprecated-ops)")
    for operation in modules.operations(module):
        if operation.name == _COPY:
            operation.results[0].replace_all_uses_with(operation.operands[0])
            operation.erase()
        elif operation.name.startswith("mhlo."):
            _rewrite(operation)
        else:
            _drop_attributes(operation)
            if precisions is not None:
                state(operation, precisions)
    _drop_attributes(module.operation)
    folding.fold(module)
    return Program.from_module(module), aliases


def _rewrite(operation: Any) -> None:
    """Replace an operation of MHLO by the equal one of CHLO."""
    function = operation.name.removeprefix("mhlo.")
    if function not in _FUNCTIONS:
        raise ProgramError(f"TensorFlow's program has {operation.name}, which StableHLO has not")
    ir = bindings.load().ir
    made = ir.Operation.create(
        f"chlo.{function}",
        results=[operation.results[0].type],
        operands=list(operation.operands),
        loc=operation.location,
        ip=ir.InsertionPoint(operation),
    )
    operation.results[0].replace_all_uses_with(made.results[0])
    operation.erase()


def _drop_attributes(operation: Any) -> None:
    for name in [name for name in operation.attributes if name.startswith("mhlo.")]:
        del operation.attributes[name]
