"""Tools for rewriting a module: making operations, and reading types and constants of operands."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pjrt_bridge.stablehlo import bindings, modules


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

    def full(self, number: int) -> Any:
        """A number in each place; of unsigned integers -1 is the largest."""
        element = element_of(self._type)
        if element.startswith("ui"):
            number %= 1 << bits_of(element)
        text = f"dense<{number}> : {self._type}"
        value = self._ir.Attribute.parse(text, self._context)
        return self._make("stablehlo.constant", self._type, (), {"value": value})

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
        """The bits of signed integers as unsigned integers."""
        bits = bits_of(element_of(value.type))
        element = self._ir.IntegerType.get_unsigned(bits, self._context)
        return self.bits(value, self._like(value.type, element))

    def bits(self, value: Any, type: Any) -> Any:
        """The bits of a value as another type of as many bits."""
        return self._make("stablehlo.bitcast_convert", type, (value,), {})

    def _like(self, type: Any, element: Any) -> Any:
        ranked = self._ir.RankedTensorType(type)
        with self._location:
            return self._ir.RankedTensorType.get(ranked.shape, element, ranked.encoding)

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
    """Of an integer type."""
    return int(element.lstrip("ui"))


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
