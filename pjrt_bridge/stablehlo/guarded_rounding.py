"""Rewrites that keep a compiler from computing floats by laws that only real numbers obey.

XLA's simplifier joins the constants of `x * c * d`, of sums and of quotients, which then overflow
or vanish, or do not where a step does; makes `x * (1 / c)` of `x / c`, which is 0 or NaN where the
reciprocal is too small for a normal number, and `floor(41.0 / 41.0)` 0; and takes `log(exp(x))`,
`sqrt(x * x)`, `x / y / z`, powers of powers and their like for what they are without overflow, and
`x + 0` for `x` also where that is -0 (algebraic_simplifier.cc).

A value is hidden between two operations by bits that are inverted twice. Compilers of loops see
that nothing is left to compute, so it costs no time there.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from pjrt_bridge.stablehlo import bindings
from pjrt_bridge.stablehlo.known_numbers import number
from pjrt_bridge.stablehlo.rewriting import (
    ON_TENSORS,
    Emitting,
    constant_of,
    element_of,
    is_constant,
    maker_of,
)

_SMALLEST = {"f16": 2.0**-14, "bf16": 2.0**-126, "f32": 2.0**-126, "f64": 2.0**-1022}
"""The smallest normal number of each type of floats whose operations are guarded."""

_ADD, _DIVIDE, _DOT, _EXP, _LOG, _MULTIPLY, _POWER, _RSQRT, _SQRT, _SUBTRACT = (
    f"stablehlo.{name}"
    for name in (
        "add",
        "divide",
        "dot_general",
        "exponential",
        "log",
        "multiply",
        "power",
        "rsqrt",
        "sqrt",
        "subtract",
    )
)
_SUMS, _PRODUCTS = (_ADD, _SUBTRACT), (_MULTIPLY, _DIVIDE)
_INVERTED = {
    _LOG: (_EXP, _POWER, _SQRT, _RSQRT),
    _POWER: (_EXP, _POWER, _SQRT, _RSQRT),
    _SQRT: (_POWER,),
    _RSQRT: (_POWER,),
}
"""Functions, and those whose results as their first operands a compiler sees through."""

_DEPTH = 6
"""Operations that are followed from a divisor to constants."""

_DIVISORS = (_DIVIDE, _EXP, _POWER)
"""Operations that a compiler joins with a division by their results."""

NAMES = (*_SUMS, *_PRODUCTS, _DOT, *_INVERTED)
"""Operations whose operands may be hidden."""


def may_join(operation: Any) -> bool:
    """Whether `separate` may replace operands of an operation."""
    if operation.name not in NAMES or operation.parent.name not in ON_TENSORS:
        return False
    type = operation.results[0].type
    return element_of(type) in _SMALLEST and bindings.load().ir.ShapedType(type).has_static_shape


def separate(operation: Any) -> None:
    """Hide the operands of an operation that a compiler would join it with.

    Args:
        operation: one for which `may_join` is true.
    """
    emit = Emitting(operation)
    divides = operation.name == _DIVIDE
    if divides and _has_inexact_reciprocal(*operation.operands):
        dividend, divisor = operation.operands
        operation.operands[1] = emit.hidden(divisor, emit.unsigned(dividend))
    if operation.name == _ADD:
        for at, operand in enumerate(operation.operands):
            if constant_of(operand) == 0:
                other = operation.operands[1 - at]
                operation.operands[at] = emit.hidden(operand, emit.unsigned(other))
    for at in sorted(set(_joined(operation))):
        operand = operation.operands[at]
        pattern = emit.full(1, emit.unsigned_type(operand.type))
        operation.operands[at] = emit.hidden(operand, pattern)


def _joined(operation: Any) -> Iterator[int]:
    """The places of operands that come from an operation which would be joined with this one."""
    operands = list(operation.operands)
    makers = [_kind(maker_of(operand)) for operand in operands]
    name = _kind(operation)
    if name in _INVERTED and makers[0] in _INVERTED[name]:
        yield 0
    if name in (_SQRT, _RSQRT) and (_is_square(operands[0]) or _is_inverse(operands[0])):
        yield 0
    for group in (_SUMS, _PRODUCTS):
        if name in group and any(map(is_constant, operands)):
            yield from (
                at
                for at, maker in enumerate(makers)
                if maker in group and any(map(is_constant, maker_of(operands[at]).operands))
            )
    if name == _DIVIDE:
        if makers[0] == _DIVIDE:
            yield 0
        if makers[1] in _DIVISORS:
            yield 1
    elif name == _MULTIPLY and makers == [_EXP, _EXP]:
        yield 0
    elif name in _SUMS and makers == [_MULTIPLY, _MULTIPLY]:
        # `x * c + y * c` overflows where `(x + y) * c` does.
        left, right = (_constant_factor(operand) for operand in operands)
        if left is not None and left == right:
            yield 0


def _kind(operation: Any) -> str:
    """An operation's name; `_MULTIPLY` for products of matrices whose sums have one term."""
    name = getattr(operation, "name", "")
    if name != _DOT:
        return name
    dims = bindings.load().stablehlo.DotDimensionNumbers(
        operation.attributes["dot_dimension_numbers"]
    )
    shape = operation.operands[0].type.shape
    return _MULTIPLY if all(shape[dim] == 1 for dim in dims.lhs_contracting_dimensions) else name


def _is_square(value: Any) -> bool:
    maker = maker_of(value)
    return getattr(maker, "name", "") == _MULTIPLY and maker.operands[0] == maker.operands[1]


def _is_inverse(value: Any) -> bool:
    maker = maker_of(value)
    return getattr(maker, "name", "") == _DIVIDE and is_constant(maker.operands[0])


def _constant_factor(product: Any) -> float | None:
    found = [constant_of(operand) for operand in maker_of(product).operands]
    return next((factor for factor in found if factor is not None), None)


def _has_inexact_reciprocal(dividend: Any, divisor: Any) -> bool:
    """Whether a compiler would multiply with a number that is not the divisor's reciprocal."""
    if not _is_folded(divisor, _DEPTH) or is_constant(dividend):
        return False
    known = number(divisor)
    if known is None:
        return True
    if known == 0 or not math.isfinite(known):
        return False
    is_power_of_two = abs(math.frexp(known)[0]) == 0.5
    return not is_power_of_two or 1 / abs(known) < _SMALLEST[element_of(divisor.type)]


def _is_folded(value: Any, depth: int) -> bool:
    """Whether a compiler makes a constant of a value, as it is computed of constants alone.

    Args:
        value: of the program.
        depth: operations that are followed from it.
    """
    if is_constant(value):
        return True
    operands = getattr(maker_of(value), "operands", ())
    return depth > 0 and len(operands) > 0 and all(_is_folded(item, depth - 1) for item in operands)
