"""Forms of operations that no compiler misreads or dies of, with the same results.

Compilers fold constants with code of StableHLO that has defects. Up to jaxlib 0.10 it divides
integers by zero, at which the processor traps and the process ends; it drops NaN from maxima and
minima, takes the sum of two true bools for false, and gives wrong powers and leading zeros of
negative integers. What an optimization barrier hides is folded later, by XLA. A comparison of
constants without a type, which StableHLO lets a program leave out, is unsigned for XLA's CPU plugin
of API 0.81. XLA takes `x * x` and `abs(x)` for numbers that are not negative, and folds
comparisons, signs and magnitudes of them; those of integers wrap.

The interpreter divides arguments by zero, too. So every plugin is given the forms made here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pjrt_bridge.stablehlo import bindings, modules

_ABS, _COMPARE, _DIVIDE, _MULTIPLY, _REMAINDER, _SELECT = (
    f"stablehlo.{name}" for name in ("abs", "compare", "divide", "multiply", "remainder", "select")
)
_FOLDED_WRONGLY: Mapping[str, Callable[[str], bool]] = {
    "stablehlo.add": lambda element: element == "i1",
    "stablehlo.clamp": lambda element: not _is_integer(element),
    "stablehlo.count_leading_zeros": modules.is_signed_integer,
    "stablehlo.maximum": lambda element: not _is_integer(element),
    "stablehlo.minimum": lambda element: not _is_integer(element),
    "stablehlo.power": modules.is_signed_integer,
}
"""Operations whose folded results are wrong, and for which element types."""
_NEVER_FOLDED = frozenset(
    f"stablehlo.{name}" for name in ("case", "custom_call", "if", "optimization_barrier", "while")
)
NAMES = tuple(
    name.removeprefix("stablehlo.").encode()
    for name in (_ABS, _COMPARE, _DIVIDE, _MULTIPLY, _REMAINDER, *_FOLDED_WRONGLY, "chlo")
)
"""What bytecode contains if there may be something to guard; CHLO is made of other operations."""


def guard(module: Any) -> None:
    """State types of comparisons, guard integers that trap or wrap, hide constants from folding."""
    divisions, folded, wrapping = [], [], []
    for operation in modules.operations(module):
        name = operation.name
        if name == _COMPARE:
            _state_type(operation)
        elif name in (_DIVIDE, _REMAINDER):
            divisions.append(operation)
        elif name in (_ABS, _MULTIPLY):
            wrapping.append(operation)
        elif name in _FOLDED_WRONGLY and _FOLDED_WRONGLY[name](_element(operation.results[0].type)):
            folded.append(operation)
    known: dict[Any, bool] = {}
    for operation in [found for found in folded if _is_known(found.results[0], known)]:
        _hide(operation)
    for operation in divisions:
        guarded_division(operation)
    for operation in wrapping:
        _guard_sign(operation)


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
    element = _element(comparison.operands[0].type)
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
    if not _is_integer(_element(result.type)) or not ir.ShapedType(result.type).has_static_shape:
        return result
    if _is_plain_divisor(right) or _is_guarded(right):
        return result
    emit = _Emitting(division)
    minus_one = emit.full(-1)
    by_zero = traps = emit.equal(right, emit.full(0))
    if modules.is_signed_integer(_element(result.type)):
        lowest = emit.full(-1 << (_bits(_element(result.type)) - 1))
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


def _guard_sign(operation: Any) -> None:
    """Write a product or a magnitude of signed integers so that its sign is not guessed."""
    result = operation.results[0]
    element = _element(result.type)
    if not _is_integer(element) or not modules.is_signed_integer(element):
        return
    if not bindings.load().ir.ShapedType(result.type).has_static_shape:
        return
    emit = _Emitting(operation)
    if operation.name == _ABS:
        (x,) = operation.operands
        negative = emit.compared("LT", x, emit.full(0))
        instead = emit.make(_SELECT, negative, emit.make("stablehlo.negate", x), x)
    else:
        if any(_constant(factor) is not None for factor in operation.operands):
            # Only a product of equal factors is taken for a square.
            return
        instead = emit.as_signed(
            emit.make(_MULTIPLY, *(emit.as_unsigned(factor) for factor in operation.operands))
        )
    result.replace_all_uses_with(instead)
    operation.erase()


class _Emitting:
    """Makes operations on integers of one type in front of an operation."""

    def __init__(self, operation: Any) -> None:
        self._ir = bindings.load().ir
        self._location = operation.location
        self._point = self._ir.InsertionPoint(operation)
        self._type = operation.results[0].type
        self._context = operation.context

    def make(self, name: str, *operands: Any) -> Any:
        """The result of an operation that has the type of its last operand."""
        return self._make(name, operands[-1].type, operands, {})

    def full(self, number: int) -> Any:
        """A number in each place; of unsigned integers -1 is the largest."""
        element = _element(self._type)
        if element.startswith("ui"):
            number %= 1 << _bits(element)
        text = f"dense<{number}> : {self._type}"
        value = self._ir.Attribute.parse(text, self._context)
        return self._make("stablehlo.constant", self._type, (), {"value": value})

    def equal(self, left: Any, right: Any) -> Any:
        """Whether integers are equal."""
        return self.compared("EQ", left, right)

    def as_unsigned(self, value: Any) -> Any:
        """The bits of integers as unsigned integers."""
        with self._location:
            element = self._ir.IntegerType.get_unsigned(_bits(_element(self._type)), self._context)
            kind = self._ir.RankedTensorType.get(self._ir.ShapedType(self._type).shape, element)
        return self._make("stablehlo.bitcast_convert", kind, (value,), {})

    def as_signed(self, value: Any) -> Any:
        """The bits of unsigned integers as integers of the type."""
        return self._make("stablehlo.bitcast_convert", self._type, (value,), {})

    def compared(self, direction: str, left: Any, right: Any) -> Any:
        """How integers compare."""
        dialect = bindings.load().stablehlo
        kind = "SIGNED" if modules.is_signed_integer(_element(self._type)) else "UNSIGNED"
        attributes = {
            "comparison_direction": dialect.ComparisonDirectionAttr.get(direction, self._context),
            "compare_type": dialect.ComparisonTypeAttr.get(kind, self._context),
        }
        shape = self._ir.ShapedType(self._type).shape
        with self._location:
            truth = self._ir.RankedTensorType.get(
                shape, self._ir.IntegerType.get_signless(1, self._context)
            )
        return self._make(_COMPARE, truth, (left, right), attributes)

    def _make(
        self, name: str, type: Any, operands: Sequence[Any], attributes: dict[str, Any]
    ) -> Any:
        made = self._ir.Operation.create(
            name, [type], list(operands), attributes, loc=self._location, ip=self._point
        )
        return made.results[0]


def _element(type: Any) -> str:
    return str(bindings.load().ir.ShapedType(type).element_type)


def _is_integer(element: str) -> bool:
    return element.startswith(("i", "ui")) and element != "i1"


def _bits(element: str) -> int:
    return int(element.lstrip("ui"))


def _maker(value: Any) -> Any:
    """The operation that a value comes from, through changes of its shape; None: an argument."""
    owner = value.owner
    while getattr(owner, "name", "") in ("stablehlo.broadcast_in_dim", "stablehlo.reshape"):
        owner = owner.operands[0].owner
    return owner


def _constant(value: Any) -> int | None:
    """The one number that a value has in each place; None where it is not known to have one."""
    owner = _maker(value)
    if getattr(owner, "name", "") != "stablehlo.constant":
        return None
    elements = owner.attributes["value"]
    return int(elements.get_splat_value().value) if elements.is_splat else None


def _is_plain_divisor(value: Any) -> bool:
    """Whether a value is one number that is neither 0 nor -1."""
    return _constant(value) not in (None, 0, -1)


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
        elif name == _COMPARE and "EQ" in str(maker.attributes["comparison_direction"]):
            compared, number = maker.operands
            if compared == divided and _constant(number) == 0 and _constant(instead) == 1:
                return True
    return False
