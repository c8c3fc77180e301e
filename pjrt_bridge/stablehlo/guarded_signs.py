"""Rewrites that keep a compiler from assuming that a result is not negative.

XLA's simplifier takes squares, even powers and absolute values for numbers that are not negative,
also where integers overflow: the square of the byte 100 is 16, that of 12 is -112, and the lowest
integer is its own absolute value. It takes floats that are not negative for at least 0, also NaN.
Then what asks for the sign is wrong: comparisons with 0, absolute values, divisions by powers of 2.
"""

from __future__ import annotations

from typing import Any

from pjrt_bridge.stablehlo import modules
from pjrt_bridge.stablehlo.known_numbers import direction_of
from pjrt_bridge.stablehlo.rewriting import (
    ON_TENSORS,
    Emitting,
    constant_of,
    element_of,
    is_constant,
    maker_of,
)

_ABS, _COMPARE, _MULTIPLY, _POWER = NAMES = tuple(
    f"stablehlo.{name}" for name in ("abs", "compare", "multiply", "power")
)
"""Operations whose results are taken for not negative, and the one that asks for a sign."""


def may_tell(operation: Any) -> bool:
    """Whether `hide` may replace an operation."""
    name = operation.name
    if name not in NAMES or operation.parent.name not in ON_TENSORS:
        return False
    return name == _COMPARE or modules.is_signed_integer(element_of(operation.results[0].type))


def hide(operation: Any) -> None:
    """Replace an operation by others with the same results, where a compiler would assume a sign.

    Args:
        operation: one for which `may_tell` is true; a comparison has its type stated.
    """
    emit = Emitting(operation)
    found = None
    if operation.name == _COMPARE:
        found = _compared_with_zero(operation, emit)
    elif operation.name == _ABS:
        operand = operation.operands[0]
        found = emit.make("stablehlo.maximum", operand, emit.make("stablehlo.negate", operand))
    elif operation.name == _POWER:
        base, exponent = operation.operands
        times = constant_of(exponent)
        if times is not None and times > 1:
            found = emit.bits(_product(emit, emit.unsigned(base), int(times)), base.type)
    elif not any(map(is_constant, operation.operands)):
        # Products of signed and of unsigned integers have the same bits.
        unsigned = map(emit.unsigned, operation.operands)
        found = emit.bits(emit.make(_MULTIPLY, *unsigned), operation.results[0].type)
    if found is not None:
        operation.results[0].replace_all_uses_with(found)
        operation.erase()


def _product(emit: Emitting, base: Any, times: int) -> Any:
    """A value multiplied with itself, so many times."""
    if times == 1:
        return base
    half = _product(emit, base, times // 2)
    square = emit.make(_MULTIPLY, half, half)
    return emit.make(_MULTIPLY, square, base) if times % 2 else square


def _compared_with_zero(comparison: Any, emit: Emitting) -> Any | None:
    """Whether computed floats are at least 0; None where a comparison asks something else."""
    left, right = comparison.operands
    if "FLOAT" not in str(comparison.attributes["compare_type"]):
        return None
    direction = direction_of(comparison)
    if direction == "GE":
        number, zero, strictly = left, right, "GT"
    elif direction == "LE":
        number, zero, strictly = right, left, "LT"
    else:
        return None
    is_computed = hasattr(maker_of(number), "name")
    if not is_computed or constant_of(zero) != 0:
        return None
    return emit.make(
        "stablehlo.or",
        emit.compare(strictly, "FLOAT", left, right),
        emit.compare("EQ", "FLOAT", left, right),
    )
