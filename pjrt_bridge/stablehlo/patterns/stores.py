"""Values that a function which is not inlined gives back, so that they are written to memory.

Where a custom call has written such a value, the function would copy it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pjrt_bridge.stablehlo import bindings
from pjrt_bridge.stablehlo.builder.builder import Builder, Value
from pjrt_bridge.stablehlo.builder.orders import memory_order, operation_of
from pjrt_bridge.stablehlo.builder.rewriting import Operation

_MOVES = ("stablehlo.reshape", "stablehlo.transpose")


def stored(b: Builder, operation: Operation) -> Sequence[Value] | None:
    """A call of a function that gives its argument back: the argument, where it is in memory."""
    if len(operation.operands) != 1:
        return None
    (value,) = operation.operands
    (handle,) = operation.handle.operands
    made = operation_of(handle)
    while made is not None and made.name in _MOVES:
        made = operation_of(made.operands[0])
    is_written = made is not None and made.name == "stablehlo.custom_call"
    is_row_major = is_written and memory_order(value) == tuple(range(value.rank))
    return [value] if is_row_major and gives_back(operation.handle) else None


def gives_back(call: Any) -> bool:
    """Whether the function that is called gives its argument back."""
    module = call
    while module.name != "builtin.module":
        module = module.parent
        module = getattr(module, "operation", module)
    symbol = call.attributes["callee"].value
    function = bindings.load().ir.SymbolTable(module)[symbol]
    (block,) = function.regions[0].blocks
    operations = list(block.operations)
    return len(operations) == 1 and list(operations[0].operands) == list(block.arguments)
