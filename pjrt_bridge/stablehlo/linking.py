"""Takes the functions of one module over into another, where they can be called."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pjrt_bridge.errors import ProgramError
from pjrt_bridge.stablehlo import bindings, modules

_OF_MAIN = ("arg_attrs", "res_attrs")
"""What a function says of its parameters and results; of `main` that is the caller's matter."""


def take_over(
    module: Any, source: bytes, prefix: str, *, inlined: bool = False
) -> tuple[str, list[Any]]:
    """Copy the functions of a program into a module, as private ones.

    Donation, layouts and names of its parameters and results are left out: they say how a plugin is
    to call a program.

    Args:
        module: where they are put.
        source: the program as MLIR bytecode.
        prefix: that their names get.
        inlined: whether small functions are put where they are called.

    Returns:
        The symbol of its `main`, and all functions in the module.

    Raises:
        ProgramError: it has a mesh, or anything else beside functions.
    """
    ir = bindings.load().ir
    found = ir.Module.parse(source, module.context)
    main = modules.find_main(found)
    if inlined:
        inline_small(found)
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


_SMALL = 64
"""Operations of a function that is inlined. JAX writes one for `jnp.where` and its kind."""

_NESTED = 2
"""How deep functions that are inlined may call each other."""


def inline_small(module: Any) -> None:
    """Put small private functions, which call none or such as call none, where they are called.

    MLIR's own pass does not inline StableHLO. JAX's variance calls `jnp.where`.
    """
    for _ in range(_NESTED):
        _inline_innermost(module)


def _inline_innermost(module: Any) -> None:
    functions = [view.operation for view in module.body.operations]
    calls = [call for function in functions for call in _calls(function)]
    named = {str(item.attributes["sym_name"].value): item for item in functions if _is_small(item)}
    found = [(call, named.get(str(call.attributes["callee"].value))) for call in calls]
    for call, callee in found:
        # A call may say that its function is not to be inlined.
        if callee is not None and len(call.attributes) == 1:
            inline(call, callee)
    if any(callee is not None for _, callee in found):
        drop_unused(module)


def _calls(function: Any) -> list[Any]:
    ir, found = bindings.load().ir, []

    def visit(operation: Any) -> Any:
        if operation.name == "func.call":
            found.append(operation)
        return ir.WalkResult.ADVANCE

    modules.walk(function, visit, outer_first=True)
    return found


def _is_small(function: Any) -> bool:
    if function.name != "func.func" or len(function.regions[0].blocks) != 1:
        return False
    steps = len(list(function.regions[0].blocks[0].operations))
    private = "sym_visibility" in function.attributes
    return private and steps <= _SMALL and not _calls(function)


def inline(call: Any, callee: Any) -> list[Any]:
    """Put the body of a function in the place of an operation that stands for a call of it.

    Args:
        call: is erased.
        callee: a function of one block.

    Returns:
        The operations that were written.
    """
    body = callee.regions[0].blocks[0]
    new = dict(zip(body.arguments, call.operands, strict=True))
    ip = bindings.load().ir.InsertionPoint(call)
    *steps, end = (view.operation for view in body.operations)
    made = [copy(step, new, ip) for step in steps]
    for old, value in zip(call.results, end.operands, strict=True):
        old.replace_all_uses_with(new.get(value, value))
    call.erase()
    return made


def copy(operation: Any, new: dict[Any, Any], ip: Any) -> Any:
    """Write an operation once more, with other values in the place of those that it uses.

    Args:
        operation: also its regions may use values from outside.
        new: by value what takes its place; gets the results.
        ip: where it is written.
    """
    ir = bindings.load().ir
    made = operation.clone(ip=ip)

    def visit(inner: Any) -> Any:
        for index, operand in enumerate(inner.operands):
            if operand in new:
                inner.operands[index] = new[operand]
        return ir.WalkResult.ADVANCE

    modules.walk(made, visit, outer_first=True)
    new.update(zip(operation.results, made.results, strict=True))
    return made


def _rename(module: Any, function: Any, prefix: str) -> None:
    ir = bindings.load().ir
    old = function.attributes["sym_name"].value
    new = f"{prefix}.{old}"
    ir.SymbolTable.replace_all_symbol_uses(old, new, module.operation)
    ir.SymbolTable.set_symbol_name(function, new)
