"""The number that all elements of a value are, read from the operations that made it.

Handles are MLIR's values and operations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from pjrt_bridge import dtypes
from pjrt_bridge.dtypes import DType

_DEPTH = 12
"""Operations that are followed."""

_COMPUTED: Mapping[str, Callable[..., Any]] = {
    "stablehlo.abs": np.abs,
    "stablehlo.add": np.add,
    "stablehlo.divide": np.divide,
    "stablehlo.maximum": np.maximum,
    "stablehlo.minimum": np.minimum,
    "stablehlo.multiply": np.multiply,
    "stablehlo.negate": np.negative,
    "stablehlo.rsqrt": lambda x: 1 / np.sqrt(x),
    "stablehlo.sqrt": np.sqrt,
    "stablehlo.subtract": np.subtract,
}
COMPARED: Mapping[str, Callable[..., Any]] = {
    "EQ": np.equal,
    "NE": np.not_equal,
    "LT": np.less,
    "LE": np.less_equal,
    "GT": np.greater,
    "GE": np.greater_equal,
}
"""Comparisons by their direction."""

_LOGICAL: Mapping[str, Callable[..., Any]] = {
    "stablehlo.and": np.logical_and,
    "stablehlo.not": np.logical_not,
    "stablehlo.or": np.logical_or,
}
_SAME_NUMBER = ("stablehlo.broadcast_in_dim", "stablehlo.reshape", "stablehlo.transpose")


def maker(value: Any) -> Any:
    """The operation whose result a value is; None for a parameter."""
    owner = getattr(value.owner, "operation", value.owner)
    return owner if hasattr(owner, "attributes") else None


def users(value: Any) -> Iterator[Any]:
    """The operations that read a value, once for each of their operands that it is."""
    for use in value.uses:
        yield getattr(use.owner, "operation", use.owner)


def name_of(value: Any) -> str:
    """The name of the operation whose result a value is; empty for a parameter."""
    made = maker(value)
    return "" if made is None else str(made.name)


def dtype_of(value: Any) -> DType:
    """The element type of a value."""
    return dtypes.from_stablehlo(str(value.type.element_type))


def number(value: Any, depth: int = _DEPTH) -> float | None:
    """The number that all elements of a float value are; None where that is not known."""
    made = maker(value)
    if made is None or not depth:
        return None
    if made.name == "stablehlo.constant":
        return _splat(made) if dtype_of(value).is_float else None
    if made.name in _SAME_NUMBER:
        return number(made.operands[0], depth - 1)
    if made.name == "stablehlo.convert":
        source = made.operands[0]
        is_whole = name_of(source) == "stablehlo.constant" and dtype_of(source).is_integer
        known = _splat(maker(source)) if is_whole else number(source, depth - 1)
        return None if known is None else _rounded(known, value)
    if made.name == "stablehlo.select":
        chosen = selected(made, depth - 1)
        return None if chosen is None else number(chosen, depth - 1)
    compute = _COMPUTED.get(made.name)
    if compute is None:
        return None
    numbers = [number(item, depth - 1) for item in made.operands]
    if None in numbers:
        return None
    with np.errstate(all="ignore"):
        return _rounded(compute(*(np.float64(item) for item in numbers if item is not None)), value)


def whole_number(value: Any) -> int | None:
    """The number of a constant of integers that are all the same; None of another value."""
    made = maker(value)
    if made is None or made.name != "stablehlo.constant" or not dtype_of(value).is_integer:
        return None
    elements = made.attributes["value"]
    return int(elements.get_splat_value().value) if elements.is_splat else None


def is_filled(value: Any) -> bool:
    """Whether a value is a constant whose elements are all the same, and not complex.

    MLIR's bindings have no type for complex elements of a constant.
    """
    made = maker(value)
    is_constant = made is not None and made.name == "stablehlo.constant"
    return is_constant and not dtype_of(value).is_complex and made.attributes["value"].is_splat


def truth(value: Any, depth: int = _DEPTH) -> bool | None:
    """What all elements of a bool value are; None where that is not known."""
    made = maker(value)
    if made is None or not depth:
        return None
    if made.name == "stablehlo.constant":
        known = _splat(made)
        return None if known is None else bool(known)
    if made.name in _SAME_NUMBER:
        return truth(made.operands[0], depth - 1)
    if made.name == "stablehlo.compare":
        numbers = [number(item, depth - 1) for item in made.operands]
        return None if None in numbers else bool(COMPARED[direction_of(made)](*numbers))
    compute = _LOGICAL.get(made.name)
    known_ones = [truth(item, depth - 1) for item in made.operands] if compute else [None]
    return None if compute is None or None in known_ones else bool(compute(*known_ones))


def direction_of(compare: Any) -> str:
    """The direction of a comparison, such as "LT"."""
    return str(compare.attributes["comparison_direction"]).split()[-1].rstrip(">")


def kind_of(compare: Any) -> str:
    """The type of a comparison, such as "FLOAT"; empty where it is that of the elements."""
    if "compare_type" not in compare.attributes:
        return ""
    return str(compare.attributes["compare_type"]).split()[-1].rstrip(">")


def selected(select: Any, depth: int = _DEPTH) -> Any:
    """The operand that a selection gives for all elements; None where that is not known."""
    known = truth(select.operands[0], depth)
    return None if known is None else select.operands[1 if known else 2]


def _splat(constant: Any) -> float | None:
    elements = constant.attributes["value"]
    return float(elements.get_splat_value().value) if elements.is_splat else None


def _rounded(exact: Any, value: Any) -> float:
    return float(np.float64(exact).astype(dtype_of(value).numpy))
