"""Forms of operations that no compiler misreads or dies of, with the same results.

Compilers fold constants with code of StableHLO that has defects. Up to jaxlib 0.10 it divides
integers by zero, at which the processor traps and the process ends; it drops NaN from maxima and
minima, takes the sum of two true bools for false, and gives wrong powers and leading zeros of
negative integers. What an optimization barrier hides is folded later, by XLA. A comparison of
constants without a type, which StableHLO lets a program leave out, is unsigned for XLA's CPU plugin
of API 0.81.

The interpreter divides arguments by zero, too. So every plugin is given the forms made here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pjrt_bridge.stablehlo import (
    bindings,
    guarded_exponentials,
    guarded_rounding,
    guarded_signs,
    modules,
)
from pjrt_bridge.stablehlo.known_numbers import direction_of
from pjrt_bridge.stablehlo.rewriting import (
    Emitting,
    bits_of,
    constant_of,
    element_of,
    is_integer,
)

_COMPARE, _DIVIDE, _POWER, _REMAINDER, _SELECT = (
    f"stablehlo.{name}" for name in ("compare", "divide", "power", "remainder", "select")
)
_FOLDED_WRONGLY: Mapping[str, Callable[[str], bool]] = {
    "stablehlo.add": lambda element: element == "i1",
    "stablehlo.clamp": lambda element: not is_integer(element),
    "stablehlo.count_leading_zeros": modules.is_signed_integer,
    "stablehlo.maximum": lambda element: not is_integer(element),
    "stablehlo.minimum": lambda element: not is_integer(element),
    _POWER: modules.is_signed_integer,
}
"""Operations whose folded results are wrong, and for which element types."""
_NEVER_FOLDED = frozenset(
    f"stablehlo.{name}" for name in ("case", "custom_call", "if", "optimization_barrier", "while")
)
_OF_OTHERS = (*guarded_exponentials.NAMES, *guarded_signs.NAMES, *guarded_rounding.NAMES)
NAMES = tuple(
    name.removeprefix("stablehlo.").encode()
    for name in (_DIVIDE, _REMAINDER, *_FOLDED_WRONGLY, *_OF_OTHERS, "chlo")
)
"""What bytecode contains if there may be something to guard; CHLO is made of other operations."""


def guard(module: Any) -> None:
    """Write operations in forms that are compiled rightly; their results are the same."""
    divisions, folded, signs, joined, exponentials = [], [], [], [], []
    for operation in modules.operations(module):
        name = operation.name
        if name == _COMPARE:
            _state_type(operation)
        elif name in (_DIVIDE, _REMAINDER):
            divisions.append(operation)
        elif name in _FOLDED_WRONGLY and _FOLDED_WRONGLY[name](
            element_of(operation.results[0].type)
        ):
            folded.append(operation)
        if guarded_signs.may_tell(operation):
            signs.append(operation)
        if guarded_rounding.may_join(operation):
            joined.append(operation)
        if guarded_exponentials.may_lose(operation):
            exponentials.append(operation)
    known: dict[Any, bool] = {}
    for operation in [found for found in folded if _is_known(found.results[0], known)]:
        _hide(operation)
    for operation in joined:
        guarded_rounding.separate(operation)
    for operation in exponentials:
        guarded_exponentials.keep(operation)
    for operation in divisions:
        guarded_division(operation)
    for operation in signs:
        guarded_signs.hide(operation)


def _is_known(value: Any, known: dict[Any, bool]) -> bool:
    """Whether a compiler may compute a value without knowing any argument's elements.

    Args:
        value: of a module.
        known: what was found of other values of it.
    """
    waiting = [value]
    while waiting:
        asked = waiting[-1]
        name = getattr(asked.owner, "name", "")
        if not name.startswith("stablehlo.") or name in _NEVER_FOLDED:
            known[asked] = _is_empty(asked.type)
        elif asked not in known:
            operands = list(asked.owner.operands)
            found = [known.get(operand) for operand in operands]
            verdict = _verdict(name, found)
            if verdict is None and not _is_empty(asked.type):
                waiting.append(operands[found.index(None)])
                continue
            known[asked] = verdict is not False or _is_empty(asked.type)
        waiting.pop()
    return known[value]


def _verdict(name: str, operands: Sequence[bool | None]) -> bool | None:
    """Whether an operation follows from constants; None where more of its operands decide."""
    if name == _SELECT:
        test, on_true, on_false = operands
        if test and (on_true or on_false):
            return True
        return None if None in operands and test is not False else False
    if False in operands:
        return False
    return None if None in operands else True


def _is_empty(type: Any) -> bool:
    ir = bindings.load().ir
    return isinstance(type, ir.RankedTensorType) and 0 in type.shape


def _hide(operation: Any) -> None:
    """Put an optimization barrier in front of the first operand of an operation."""
    ir = bindings.load().ir
    operand = operation.operands[0]
    barrier = ir.Operation.create(
        "stablehlo.optimization_barrier",
        [operand.type],
        [operand],
        loc=operation.location,
        ip=ir.InsertionPoint(operation),
    )
    operation.operands[0] = barrier.results[0]


def _state_type(comparison: Any) -> None:
    """Give a comparison the type that StableHLO infers where it has none (spec, "compare")."""
    if "compare_type" in comparison.attributes:
        return
    element = element_of(comparison.operands[0].type)
    kind = "FLOAT"
    if modules.is_signed_integer(element):
        kind = "SIGNED"
    elif element.startswith(("i", "ui")):
        kind = "UNSIGNED"
    made = bindings.load().stablehlo.ComparisonTypeAttr.get(kind, comparison.context)
    comparison.attributes["compare_type"] = made


def guarded_division(division: Any) -> Any:
    """The result of a division that does not trap; it takes the place of the division.

    Integers divided by zero give -1, and are their own remainders, as in XLA.

    Args:
        division: `stablehlo.divide` or `stablehlo.remainder`; left as it is where it cannot trap,
            is guarded, or has no static shape.
    """
    result = division.results[0]
    left, right = division.operands
    ir = bindings.load().ir
    if not is_integer(element_of(result.type)) or not ir.ShapedType(result.type).has_static_shape:
        return result
    if _is_plain_divisor(right) or _is_guarded(right):
        return result
    emit = Emitting(division)
    minus_one = emit.full(-1)
    by_zero = traps = emit.equal(right, emit.full(0))
    if modules.is_signed_integer(element_of(result.type)):
        lowest = emit.full(-1 << (bits_of(element_of(result.type)) - 1))
        overflows = emit.make(
            "stablehlo.and", emit.equal(left, lowest), emit.equal(right, minus_one)
        )
        traps = emit.make("stablehlo.or", by_zero, overflows)
    divisor = emit.make(_SELECT, traps, emit.full(1), right)
    found = emit.make(division.name, left, divisor)
    instead = minus_one if division.name == _DIVIDE else left
    guarded = emit.make(_SELECT, by_zero, instead, found)
    result.replace_all_uses_with(guarded)
    division.erase()
    return guarded


def _is_plain_divisor(value: Any) -> bool:
    """Whether a value is one number that is neither 0 nor -1."""
    return constant_of(value) not in (None, 0, -1)


def _is_guarded(divisor: Any) -> bool:
    """Whether a divisor is 1 where it would be 0."""
    owner = divisor.owner
    if getattr(owner, "name", "") != _SELECT:
        return False
    test, instead, divided = owner.operands
    tests = [test]
    while tests:
        maker = tests.pop().owner
        name = getattr(maker, "name", "")
        if name == "stablehlo.or":
            tests += maker.operands
        elif name == _COMPARE and direction_of(maker) == "EQ":
            compared, number = maker.operands
            if compared == divided and constant_of(number) == 0 and constant_of(instead) == 1:
                return True
    return False
