"""Tools for rewriting a module: making operations, and reading types and constants of operands."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pjrt_bridge.stablehlo import bindings, modules

ON_TENSORS = frozenset(("func.func", *(f"stablehlo.{name}" for name in ("case", "if", "while"))))
"""Operations whose regions compute with tensors; regions of others combine two elements.

Compilers recognize a reduction by the one operation in its region, so that one stays as it is.
"""

_XOR = "stablehlo.xor"

_NAN = {"f16": "0x7E00", "bf16": "0x7FC0", "f32": "0x7FC00000", "f64": "0x7FF8000000000000"}
"""The bits of NaN, by element type."""


class Emitting:
    """Makes operations in front of one that they replace."""

    def __init__(self, replaced: Any) -> None:
        self._ir = bindings.load().ir
        self._location = replaced.location
        self._point = self._ir.InsertionPoint(replaced)
        self._type = replaced.results[0].type
        self._context = replaced.context

    def make(self, name: str, *operands: Any) -> Any:
        """The result of an operation that has the type of its last operand."""
        return self._make(name, operands[-1].type, operands, {})

    def full(self, number: int, type: Any = None) -> Any:
        """A number in each place; of unsigned integers -1 is the largest.

        Args:
            number: an integer.
            type: of the result; None: that of the operation that is replaced.
        """
        type = self._type if type is None else type
        element = element_of(type)
        if element.startswith("ui"):
            number %= 1 << bits_of(element)
        return self._splat(number, type)

    def nan(self, type: Any) -> Any:
        """NaN in each place, of a type of floats."""
        return self._splat(_NAN[element_of(type)], type)

    def equal(self, left: Any, right: Any) -> Any:
        """Whether integers are equal."""
        kind = "SIGNED" if modules.is_signed_integer(element_of(self._type)) else "UNSIGNED"
        return self.compare("EQ", kind, left, right)

    def compare(self, direction: str, kind: str, left: Any, right: Any) -> Any:
        """What a comparison of some direction and type finds."""
        dialect = bindings.load().stablehlo
        attributes = {
            "comparison_direction": dialect.ComparisonDirectionAttr.get(direction, self._context),
            "compare_type": dialect.ComparisonTypeAttr.get(kind, self._context),
        }
        truth = self._like(left.type, self._ir.IntegerType.get_signless(1, self._context))
        return self._make("stablehlo.compare", truth, (left, right), attributes)

    def unsigned(self, value: Any) -> Any:
        """The bits of signed integers or floats as unsigned integers."""
        return self.bits(value, self.unsigned_type(value.type))

    def unsigned_type(self, type: Any) -> Any:
        """A type of unsigned integers with as many bits."""
        bits = bits_of(element_of(type))
        return self._like(type, self._ir.IntegerType.get_unsigned(bits, self._context))

    def bits(self, value: Any, type: Any) -> Any:
        """The bits of a value as another type of as many bits."""
        return self._make("stablehlo.bitcast_convert", type, (value,), {})

    def hidden(self, value: Any, pattern: Any) -> Any:
        """A value as it is, of which a compiler that simplifies operations does not know that.

        Args:
            value: floats, or integers.
            pattern: unsigned integers of as many bits, with which the value's are inverted twice.
        """
        twice = self.make(_XOR, self.make(_XOR, self.unsigned(value), pattern), pattern)
        return self.bits(twice, value.type)

    def _like(self, type: Any, element: Any) -> Any:
        ranked = self._ir.RankedTensorType(type)
        with self._location:
            return self._ir.RankedTensorType.get(ranked.shape, element, ranked.encoding)

    def _splat(self, number: object, type: Any) -> Any:
        """A constant that has a number, as StableHLO text spells it, in each place."""
        value = self._ir.Attribute.parse(f"dense<{number}> : {type}", self._context)
        return self._make("stablehlo.constant", type, (), {"value": value})

    def _make(
        self, name: str, type: Any, operands: Sequence[Any], attributes: dict[str, Any]
    ) -> Any:
        made = self._ir.Operation.create(
            name, [type], list(operands), attributes, loc=self._location, ip=self._point
        )
        return made.results[0]


def element_of(type: Any) -> str:
    """How StableHLO text spells the type of a tensor type's elements."""
    return str(bindings.load().ir.ShapedType(type).element_type)


def is_integer(element: str) -> bool:
    """Whether StableHLO text spells a type of integers so; `i1` is bool."""
    return element.startswith(("i", "ui")) and element != "i1"


def bits_of(element: str) -> int:
    """Of a type of integers, or of IEEE's or "brain" floats."""
    return int(element.lstrip("bfiu"))


def maker_of(value: Any) -> Any:
    """The operation that a value comes from, through changes of its shape; None: an argument."""
    owner = value.owner
    while getattr(owner, "name", "") in ("stablehlo.broadcast_in_dim", "stablehlo.reshape"):
        owner = owner.operands[0].owner
    return owner


def is_constant(value: Any) -> bool:
    """Whether a value is in the program, perhaps in another shape."""
    return getattr(maker_of(value), "name", "") == "stablehlo.constant"


def constant_of(value: Any) -> float | None:
    """The one number that a value has in each place; None where it is not known to have one."""
    if not is_constant(value):
        return None
    elements = maker_of(value).attributes["value"]
    found: float | None = elements.get_splat_value().value if elements.is_splat else None
    return found
