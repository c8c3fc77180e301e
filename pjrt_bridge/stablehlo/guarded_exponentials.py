"""Rewrites that keep NaN in exponentials of numbers that a compiler knows.

XLA's CPU compiler computes exponentials of float32, and of narrower floats in it, by code that
gives NaN for NaN as a program runs. Of a constant, which a selection has on one side, or which is
the difference of two infinities there, the result is arbitrary: 0, or any other number.
"""

from __future__ import annotations

from typing import Any

from pjrt_bridge.stablehlo import bindings
from pjrt_bridge.stablehlo.operation_kinds import COPYING, ELEMENTWISE, named
from pjrt_bridge.stablehlo.rewriting import ON_TENSORS, Emitting, element_of, maker_of

NAMES = ("stablehlo.exponential", "stablehlo.exponential_minus_one")

_ELEMENTS = ("f32", "bf16", "f16")
_FOLLOWED, _SELECT = named(ELEMENTWISE | COPYING), "stablehlo.select"

_MOST = 64
"""Operations before an exponential that are looked at."""


def may_lose(operation: Any) -> bool:
    """Whether the result may be of a NaN that a compiler knows, and lost."""
    if operation.name not in NAMES or operation.parent.name not in ON_TENSORS:
        return False
    if element_of(operation.results[0].type) not in _ELEMENTS:
        return False
    waiting, seen = [operation.operands[0]], 0
    while waiting and seen < _MOST:
        made = maker_of(waiting.pop())
        name = getattr(made, "name", "")
        if name == _SELECT:
            return True
        if name in _FOLLOWED:
            waiting += made.operands
        seen += 1
    return bool(waiting)


def keep(operation: Any) -> None:
    """Have the result NaN where the operand is.

    Where a compiler is to give the operand itself, it gives the result of that.

    Args:
        operation: one for which `may_lose` is true.
    """
    ir = bindings.load().ir
    emit = Emitting(operation)
    operand = operation.operands[0]
    made = operation.clone(ip=ir.InsertionPoint(operation)).results[0]
    is_nan = emit.compare("NE", "FLOAT", operand, operand)
    operation.results[0].replace_all_uses_with(
        emit.make(_SELECT, is_nan, emit.nan(made.type), made)
    )
    operation.erase()
