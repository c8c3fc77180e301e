"""Reading and changing MLIR modules: functions, their values and attributes, operations.

Modules and what they hold are objects of jaxlib, as `pjrt_bridge.stablehlo.bindings` gives them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pjrt_bridge import dtypes
from pjrt_bridge.errors import ProgramError, UnsupportedDtype
from pjrt_bridge.stablehlo import bindings


def module_name(module: Any) -> str:
    """The module's symbol name, `"main"` where it has none."""
    attributes = module.operation.attributes
    return str(attributes["sym_name"].value) if "sym_name" in attributes else "main"


def find_main(module: Any) -> Any:
    """The public function `main`.

    Raises:
        ProgramError: there is none.
    """
    found = []
    for view in module.body.operations:
        attributes = view.operation.attributes
        if view.operation.name != "func.func":
            continue
        name = str(attributes["sym_name"].value)
        # Without the attribute a symbol is public (MLIR, "Symbols and Symbol Tables").
        private = "sym_visibility" in attributes and attributes["sym_visibility"].value != "public"
        if name == "main" and not private:
            return view
        found.append(f"private {name}" if private else name)
    raise ProgramError(
        f"program {module_name(module)!r}: no public function 'main'; "
        f"functions found: {', '.join(found) or 'none'}"
    )


def meshes(module: Any) -> dict[str, str]:
    """The text of each Shardy mesh of the module, by symbol name."""
    return {
        str(view.operation.attributes["sym_name"].value): str(view.operation.attributes["mesh"])
        for view in module.body.operations
        if view.operation.name == "sdy.mesh"
    }


def declare_mesh(module: Any, symbol: str, text: str) -> None:
    """Put a Shardy mesh at the top of a module, which may have the same one.

    Raises:
        ProgramError: the module has another mesh.
    """
    found = meshes(module)
    wanted = f"#sdy.mesh{text}"
    if found and found != {symbol: wanted}:
        raise ProgramError(
            f"program {module_name(module)!r}: found the meshes {found}, expected none but "
            f"@{symbol} = {wanted}"
        )
    if found:
        return
    ir = bindings.load().ir
    parsed = ir.Module.parse(f"sdy.mesh @{symbol} = {text}", module.context)
    (mesh,) = parsed.body.operations
    mesh.operation.clone(ip=ir.InsertionPoint.at_block_begin(module.body))


Described = list[tuple[Any, dict[str, Any]]]
"""Per value an MLIR type and the attributes on it: Python values, or MLIR text of others."""


def function_values(function: Any) -> tuple[Described, Described]:
    """Parameters and results of a function with their attributes."""
    kind = function.type
    return (
        _described(function, kind.inputs, "arg_attrs"),
        _described(function, kind.results, "res_attrs"),
    )


def _described(function: Any, types: Any, name: str) -> Described:
    attributes = function.operation.attributes
    if name not in attributes:
        return [(kind, {}) for kind in types]
    return [
        (kind, {item.name: _plain(item.attr) for item in attached})
        for kind, attached in zip(types, attributes[name], strict=True)
    ]


def attach(
    function: Any, name: str, key: str, texts: Mapping[int, str | None], *, parsed: bool = False
) -> None:
    """Set an attribute on parameters (`arg_attrs`) or results (`res_attrs`); None removes it.

    Args:
        function: changed in place.
        name: `arg_attrs` or `res_attrs`.
        key: of the attribute.
        texts: index to value.
        parsed: the values are attributes as MLIR writes them, else they are strings.
    """
    ir = bindings.load().ir
    operation = function.operation
    context = operation.context
    types = function.type.inputs if name == "arg_attrs" else function.type.results
    found = operation.attributes[name] if name in operation.attributes else [{} for _ in types]
    attached = []
    for index, attributes in enumerate(found):
        kept = {item.name: item.attr for item in attributes} if len(attributes) else {}
        if index in texts:
            kept.pop(key, None)
            if (text := texts[index]) is not None:
                made = ir.Attribute.parse if parsed else ir.StringAttr.get
                kept[key] = made(text, context)
        attached.append(ir.DictAttr.get(kept, context))
    operation.attributes[name] = ir.ArrayAttr.get(attached, context)


def bind_parameter(function: Any, index: int, value: int) -> None:
    """Make a scalar integer parameter a constant; the parameters behind it move up.

    Raises:
        ProgramError: no such parameter, or of another type.
    """
    ir = bindings.load().ir
    operation = function.operation
    kind = function.type
    inputs = list(kind.inputs)
    if not 0 <= index < len(inputs):
        raise ProgramError(f"no parameter {index}; the program has {len(inputs)} parameters")
    with operation.context, ir.Location.unknown(operation.context):
        if str(inputs[index]) not in _SCALARS:
            raise ProgramError(
                f"parameter {index}: found type {inputs[index]}, expected one of "
                f"{', '.join(_SCALARS)}"
            )
        block = operation.regions[0].blocks[0]
        constant = ir.Operation.create(
            "stablehlo.constant",
            results=[inputs[index]],
            attributes={"value": ir.Attribute.parse(f"dense<{value}> : {inputs[index]}")},
            ip=ir.InsertionPoint.at_block_begin(block),
        )
        block.arguments[index].replace_all_uses_with(constant.results[0])
        block.erase_argument(index)
        del inputs[index]
        new = ir.FunctionType.get(inputs, list(kind.results))
        operation.attributes["function_type"] = ir.TypeAttr.get(new)
        if "arg_attrs" in operation.attributes:
            attached = list(operation.attributes["arg_attrs"])
            del attached[index]
            operation.attributes["arg_attrs"] = ir.ArrayAttr.get(attached)


_SCALARS = ("tensor<i32>", "tensor<i64>")


def constant_number(value: Any) -> int | None:
    """The number that a value is, where it is a constant scalar integer or truth value."""
    owner = value.owner
    if getattr(owner, "name", "") not in ("stablehlo.constant", "sdy.constant"):
        return None
    elements = owner.attributes["value"]
    if not elements.is_splat or elements.type.shape:
        return None
    return int(elements.get_splat_value().value)


def _plain(attribute: Any) -> Any:
    ir = bindings.load().ir
    if isinstance(attribute, ir.StringAttr | ir.IntegerAttr | ir.BoolAttr):
        return attribute.value
    return str(attribute)


def tensor_parts(kind: Any) -> tuple[list[int | None], list[int | None], str] | None:
    """Sizes, bounds (None: dynamic, unbounded) and element type of a ranked tensor type.

    Args:
        kind: an MLIR type; None is returned for one that is no ranked tensor.
    """
    b = bindings.load()
    if not isinstance(kind, b.ir.RankedTensorType):
        return None
    dynamic = b.ir.ShapedType.get_dynamic_size()
    sizes = [None if size == dynamic else int(size) for size in kind.shape]
    bounds: list[int | None] = [None] * len(sizes)
    if kind.encoding is not None and b.stablehlo.TypeExtensions.isinstance(kind.encoding):
        extension = b.stablehlo.TypeExtensions(kind.encoding)
        bounds = [None if bound == dynamic else int(bound) for bound in extension.bounds]
    return sizes, bounds, str(kind.element_type)


def item_size(kind: Any) -> int:
    """Bytes of an element of a ranked tensor type; 0 of any other type, and of unknown elements."""
    parts = tensor_parts(kind)
    if parts is None:
        return 0
    try:
        return dtypes.from_stablehlo(parts[2]).itemsize
    except UnsupportedDtype:
        return 0


def nbytes(kind: Any) -> int:
    """Bytes of a value of a type; 0 where a size is dynamic, or `item_size` is 0."""
    parts = tensor_parts(kind)
    return 0 if parts is None else math.prod(size or 0 for size in parts[0]) * item_size(kind)


def is_signed_integer(element: str) -> bool:
    """Whether StableHLO text spells a type of signed integers so; `i1` is bool."""
    return element.startswith("i") and element != "i1"


def walk(operation: Any, visit: Callable[[Any], Any], *, outer_first: bool = False) -> None:
    """Call a function with an operation and with each that it contains.

    Args:
        operation: of a module.
        visit: gives a `WalkResult`, and raises nothing.
        outer_first: an operation before its bodies, not after them.
    """
    order = bindings.load().ir.WalkOrder
    try:
        operation.walk(visit, order.PRE_ORDER if outer_first else order.POST_ORDER)
    except RuntimeError as error:
        # The bindings make this of any exception within a callback, such as that of a signal.
        if "KeyboardInterrupt" in str(error):
            raise KeyboardInterrupt from None
        raise


def operations(module: Any) -> list[Any]:
    """Every operation of the module, bodies included; they do not keep the module alive."""
    ir = bindings.load().ir
    found: list[Any] = []

    def visit(operation: Any) -> Any:
        found.append(operation)
        return ir.WalkResult.ADVANCE

    walk(module.operation, visit)
    return found


@dataclass(frozen=True)
class Survey:
    """The operations of some names in a module.

    Attributes:
        calls: target, number of operands and number of results of its custom calls. A result that
            is a tuple counts as what it holds: it is an older form of several results.
        constants: element types of its constants, as StableHLO text spells them.
        loops: bytes of each result of at least `LARGE` that a compiler computes by a loop of its
            own making: not by a product, a convolution, or a call.
    """

    calls: frozenset[tuple[str, int, int]]
    constants: frozenset[str]
    loops: tuple[int, ...]


LARGE = 1 << 17
"""Bytes of a value from which on it matters whether several threads compute it."""

_NO_LOOPS = frozenset(
    {
        "stablehlo.broadcast_in_dim",
        "stablehlo.cholesky",
        "stablehlo.constant",
        "stablehlo.convolution",
        "stablehlo.custom_call",
        "stablehlo.dot_general",
        "stablehlo.fft",
        "stablehlo.iota",
        "stablehlo.reshape",
        "stablehlo.rng_bit_generator",
        "stablehlo.sort",
        "stablehlo.triangular_solve",
    }
)
"""Operations whose results come from a library function of the compiler, or are never written."""


def survey(module: Any) -> Survey:
    """Look at every operation of a module once."""
    ir = bindings.load().ir
    calls: set[tuple[str, int, int]] = set()
    constants: set[str] = set()
    loops: list[int] = []
    sizes: dict[Any, int] = {}
    for operation in operations(module):
        name = operation.name
        if name.startswith("stablehlo.") and name not in _NO_LOOPS and len(operation.results) == 1:
            kind = operation.results[0].type
            if kind not in sizes:
                sizes[kind] = nbytes(kind)
            if sizes[kind] >= LARGE:
                loops.append(sizes[kind])
        if name == "stablehlo.custom_call":
            kinds = [result.type for result in operation.results]
            results = sum(kind.num_types if isinstance(kind, ir.TupleType) else 1 for kind in kinds)
            target = operation.attributes["call_target_name"].value
            calls.add((target, len(operation.operands), results))
        elif name == "stablehlo.constant":
            constants.add(str(ir.ShapedType(operation.results[0].type).element_type))
    return Survey(frozenset(calls), frozenset(constants), tuple(loops))
