"""Takes the functions of one module over into another, where they can be called."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pjrt_bridge.errors import ProgramError
from pjrt_bridge.stablehlo import bindings, modules

_OF_MAIN = ("arg_attrs", "res_attrs")
"""What a function says of its parameters and results; of `main` that is the caller's matter."""


def take_over(module: Any, source: bytes, prefix: str) -> tuple[str, list[Any]]:
    """Copy the functions of a program into a module, as private ones.

    Donation, layouts and names of its parameters and results are left out: they say how a plugin is
    to call a program.

    Args:
        module: where they are put.
        source: the program as MLIR bytecode.
        prefix: that their names get.

    Returns:
        The symbol of its `main`, and all functions in the module.

    Raises:
        ProgramError: it has a mesh, or anything else beside functions.
    """
    ir = bindings.load().ir
    found = ir.Module.parse(source, module.context)
    main = modules.find_main(found)
    functions = [view.operation for view in found.body.operations]
    for function in functions:
        if function.name != "func.func":
            raise ProgramError(
                f"program {modules.module_name(found)!r}: found {function.name} beside its "
                "functions; only programs of functions for one device can be called"
            )
    for function in functions:
        _rename(found, function, prefix)
        function.attributes["sym_visibility"] = ir.StringAttr.get("private", module.context)
    for name in _OF_MAIN:
        if name in main.operation.attributes:
            del main.operation.attributes[name]
    end = ir.InsertionPoint(module.body)
    made = [function.clone(ip=end) for function in functions]
    return str(main.operation.attributes["sym_name"].value), made


def call(module: Any, symbol: str, operands: Sequence[Any]) -> Any:
    """The results of a call, written where MLIR's current insertion point is."""
    ir = bindings.load().ir
    function = ir.SymbolTable(module.operation)[symbol]
    callee = ir.FlatSymbolRefAttr.get(symbol, module.context)
    made = ir.Operation.create(
        "func.call", list(function.type.results), list(operands), {"callee": callee}
    )
    return list(made.results)


def drop_unused(module: Any) -> None:
    """Remove the private functions that nothing calls."""
    bindings.run_passes(module, "symbol-dce")


def _rename(module: Any, function: Any, prefix: str) -> None:
    ir = bindings.load().ir
    old = function.attributes["sym_name"].value
    new = f"{prefix}.{old}"
    ir.SymbolTable.replace_all_symbol_uses(old, new, module.operation)
    ir.SymbolTable.set_symbol_name(function, new)
