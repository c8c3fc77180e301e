"""Composites: `stablehlo.composite`, an operation made of others, with a name and attributes.

A compiler that knows the name may compute the operation in its own way; for all others the
operation is what its decomposition computes, a function of the module (StableHLO specification,
"composite").
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pjrt_bridge.errors import ArgumentError, ProgramError
from pjrt_bridge.stablehlo import bindings, linking, modules
from pjrt_bridge.wrong_arguments import require, wrong

OPERATION = "stablehlo.composite"

SINCE = "0.19.0"
"""The first version of StableHLO that has composites (dialect/VhloOps.td)."""

AttributeValue = bool | int | float | str | tuple["AttributeValue", ...]
"""An attribute. Elements of a tuple are of one type."""

_NAME = re.compile(r"[A-Za-z_]\w*(\.[\w$]+)+", re.ASCII)
_ATTRIBUTE = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_LARGEST_VERSION = 2**31 - 1


@dataclass(frozen=True)
class Composite:
    """The name, attributes and version of a composite, for a compiler that knows them.

    Attributes:
        name: with a namespace before a dot: `"my.rope"`.
        attributes: by name; lists become tuples.
        version: of what the name means.

    Raises:
        ArgumentError: a name, an attribute or a version that no composite can have.
    """

    name: str
    attributes: Mapping[str, AttributeValue] = field(default_factory=dict)
    version: int = 0

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not _NAME.fullmatch(self.name):
            raise ArgumentError(wrong("composite: name", self.name, "'namespace.operation'"))
        what = f"composite {self.name!r}"
        require(self.version, int, f"{what}: version")
        if not 0 <= self.version <= _LARGEST_VERSION:
            expected = f"a number from 0 to {_LARGEST_VERSION}"
            raise ArgumentError(wrong(f"{what}: version", self.version, expected))
        require(self.attributes, Mapping, f"{what}: attributes")
        for key in self.attributes:
            if not isinstance(key, str) or not _ATTRIBUTE.fullmatch(key):
                raise ArgumentError(wrong(f"{what}: name of an attribute", key, "an identifier"))
        plain = {
            key: _plain(f"{what}: attribute {key!r}", value)
            for key, value in self.attributes.items()
        }
        object.__setattr__(self, "attributes", plain)

    @staticmethod
    def of(operation: Any) -> Composite:
        """The composite that an operation of MLIR describes.

        An attribute that is nothing of `AttributeValue` is the text that MLIR writes for it.

        Raises:
            ArgumentError: it is no operation.
        """
        ir = bindings.load().ir
        require(operation, (ir.Operation, ir.OpView), "composite: operation")
        found = operation.attributes
        # Empty attributes and version 0 are left out.
        given, version = found.get("composite_attributes", ()), found.get("version")
        # Other writers' attributes and versions may be others than are written here.
        made = object.__new__(Composite)
        object.__setattr__(made, "name", found["name"].value)
        object.__setattr__(made, "attributes", {item.name: _read(item.attr) for item in given})
        object.__setattr__(made, "version", 0 if version is None else version.value)
        return made

    def written(self, context: Any, decomposition: str) -> dict[str, Any]:
        """The attributes of the operation in MLIR.

        Args:
            context: of MLIR.
            decomposition: symbol of the function.
        """
        ir = bindings.load().ir
        i32 = ir.IntegerType.get_signless(32, context)
        attributes = {key: _write(value, context) for key, value in self.attributes.items()}
        return {
            "name": ir.StringAttr.get(self.name, context),
            "composite_attributes": ir.DictAttr.get(attributes, context),
            "decomposition": ir.FlatSymbolRefAttr.get(decomposition, context),
            "version": ir.IntegerAttr.get(i32, self.version),
        }


def _plain(what: str, value: Any) -> AttributeValue:
    """An attribute with tuples in place of lists."""
    if isinstance(value, (list, tuple)):
        items = tuple(_plain(what, item) for item in value)
        if len({type(item) for item in items}) > 1:
            raise ArgumentError(wrong(what, value, "elements of one type"))
        return items
    # A number of NumPy is none of these types.
    if type(value) not in (bool, int, float, str):
        raise ArgumentError(wrong(what, value, "a bool, int, float, str or a list of these"))
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise ArgumentError(wrong(what, value, "an integer of 64 bits"))
    if isinstance(value, str) and not _is_storable(value):
        raise ArgumentError(wrong(what, value, "a text that UTF-8 has, without zero bytes"))
    plain: AttributeValue = value
    return plain


def _is_storable(text: str) -> bool:
    try:
        return b"\0" not in text.encode()
    except UnicodeEncodeError:
        return False


def _write(value: AttributeValue, context: Any) -> Any:
    ir = bindings.load().ir
    if isinstance(value, tuple):
        return ir.ArrayAttr.get([_write(item, context) for item in value], context)
    if isinstance(value, bool):
        return ir.BoolAttr.get(value, context)
    if isinstance(value, int):
        return ir.IntegerAttr.get(ir.IntegerType.get_signless(64, context), value)
    if isinstance(value, float):
        return ir.FloatAttr.get(ir.F64Type.get(context), value, ir.Location.unknown(context))
    return ir.StringAttr.get(value, context)


def _read(attribute: Any) -> AttributeValue:
    ir = bindings.load().ir
    if isinstance(attribute, ir.StringAttr | ir.BoolAttr | ir.IntegerAttr | ir.FloatAttr):
        value: AttributeValue = attribute.value
        return value
    if isinstance(attribute, ir.ArrayAttr):
        return tuple(map(_read, attribute))
    arrays = (ir.DenseI64ArrayAttr, ir.DenseI32ArrayAttr, ir.DenseF64ArrayAttr)
    if isinstance(attribute, (*arrays, ir.DenseF32ArrayAttr, ir.DenseBoolArrayAttr)):
        return tuple(attribute)
    # What StableHLO's artifacts make of arrays of numbers.
    numbers = ir.DenseIntElementsAttr | ir.DenseFPElementsAttr
    if isinstance(attribute, numbers) and len(ir.ShapedType(attribute.type).shape) == 1:
        return tuple(attribute)
    return str(attribute)


def inline(module: Any, keeps: Callable[[Composite], bool] = lambda composite: False) -> None:
    """Put decompositions in the places of composites, and remove those that are not used then.

    Args:
        module: changed in place.
        keeps: says of a composite that it stays.

    Raises:
        ProgramError: a decomposition that is no function of one block, or contains itself.
    """
    functions = {
        str(view.operation.attributes["sym_name"].value): view.operation
        for view in module.body.operations
        if view.operation.name == "func.func"
    }
    pending: list[tuple[Any, tuple[str, ...]]] = [
        (operation, ()) for operation in _within(module.operation)
    ]
    if not pending:
        return
    while pending:
        operation, outer = pending.pop()
        if keeps(Composite.of(operation)):
            continue
        symbol = str(operation.attributes["decomposition"].value)
        if symbol in outer:
            raise ProgramError(
                f"program {modules.module_name(module)!r}: decomposition {symbol!r} contains itself"
            )
        function = functions.get(symbol)
        if function is None or len(function.regions[0].blocks) != 1:
            raise ProgramError(
                f"program {modules.module_name(module)!r}: decomposition {symbol!r}: found no "
                "function of one block"
            )
        # What is inlined may have composites, too; those of the function itself are pending.
        made = linking.inline(operation, function)
        pending += [(inner, (*outer, symbol)) for step in made for inner in _within(step)]
    linking.drop_unused(module)


def _within(operation: Any) -> list[Any]:
    ir, found = bindings.load().ir, []

    def visit(inner: Any) -> Any:
        if inner.name == OPERATION:
            found.append(inner)
        return ir.WalkResult.ADVANCE

    modules.walk(operation, visit, outer_first=True)
    return found
