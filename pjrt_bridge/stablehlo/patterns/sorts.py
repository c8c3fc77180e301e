"""Sorts that programs write with a comparison of two elements of one operand.

JAX compares floats with one number in the place of all NaN and one in the place of both zeros,
TensorFlow in the total order of their bits. Another comparison of floats is left as it is: one of
type FLOAT gives NaN no place in the order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from pjrt_bridge import dtypes
from pjrt_bridge.stablehlo.builder.builder import Builder, Value
from pjrt_bridge.stablehlo.builder.rewriting import Operation
from pjrt_bridge.stablehlo.kernels import Kernels, convert
from pjrt_bridge.stablehlo.known_numbers import (
    direction_of,
    dtype_of,
    kind_of,
    maker,
    name_of,
    number,
    users,
)
from pjrt_bridge.stablehlo.patterns.reading import integers, operands, shape_of

_ALL = frozenset(("NaN", "zeros"))
"""What JAX replaces by one number before it compares floats."""


class _Comparator(NamedTuple):
    """A comparator that is an order of kernels.

    Attributes:
        key: the operand whose elements it compares.
        descending: the larger element comes first.
        total: floats have the total order of their bits.
    """

    key: int
    descending: bool
    total: bool


def ordered(kernels: Kernels, b: Builder, operation: Operation) -> Sequence[Value] | None:
    """`sort` by the elements of one operand; the others follow its positions.

    Where a sort need not be stable, which of two equal elements comes first is the compiler's
    choice: it is left where they can be told apart.
    """
    handle = operation.handle
    order = _comparator_of(handle)
    if order is None:
        return None
    key = operation.operands[order.key]
    dim = int(handle.attributes["dimension"]) % key.rank
    if not bool(handle.attributes["is_stable"].value):
        are_told_apart = key.dtype.is_float and not order.total
        if are_told_apart or len(operation.operands) > 1:
            return None
    counts = [_counts(item, dim) for item in handle.operands]
    given = list(zip(operation.operands, counts, strict=True))
    wide = any(x.dtype.bits > 32 for x, known in given if known)
    found = kernels.sort(
        b,
        key,
        dim,
        descending=order.descending,
        positions=dtypes.of("int64" if wide else "int32"),
        total=order.total,
        first=max(_read(item, dim) for item in handle.results),
    )
    if found is None:
        return None
    values, places = found
    results = []
    for at, (x, known) in enumerate(given):
        if at == order.key:
            results.append(values)
        elif known:
            results.append(convert(b, places, x.dtype))
        else:
            results.append(kernels.gather_along(b, x, dim, places))
    return results


def _counts(value: Any, dim: int) -> bool:
    """Whether elements are their positions along a dimension."""
    made = maker(value)
    return (
        made is not None
        and made.name == "stablehlo.iota"
        and int(made.attributes["iota_dimension"]) == dim
        and dtype_of(value).is_integer
        and dtype_of(value).bits >= 32
    )


def _read(result: Any, dim: int) -> int:
    """How many elements of a result, from the first one along a dimension on, are read."""
    found = 0
    for user in users(result):
        if user.name != "stablehlo.slice":
            return shape_of(result)[dim]
        found = max(found, integers(user, "limit_indices")[dim])
    return found


def _comparator_of(sort: Any) -> _Comparator | None:
    """The comparator of a sort; None where it is no order that kernels have."""
    (block,) = sort.regions[0].blocks
    (returned,) = list(block.operations)[-1].operands
    compared = operands(returned, "stablehlo.compare")
    direction = direction_of(maker(returned)) if compared is not None else ""
    if compared is None or direction not in ("LT", "GT"):
        return None
    sides = [_side(item) for item in compared]
    places = [_place(block, argument) for argument, _ in sides]
    key, first = divmod(min(places), 2)
    if first or sorted(places) != [2 * key, 2 * key + 1] or sides[0][1] != sides[1][1]:
        return None
    kind, replaced = kind_of(maker(returned)), sides[0][1]
    descending = (direction == "GT") == (places[0] < places[1])
    dtype = dtype_of(compared[0])
    if not dtype.is_float:
        usual = "SIGNED" if dtype.is_signed_integer else "UNSIGNED"
        is_known = kind in ("", usual) and not replaced
        return _Comparator(key, descending, False) if is_known else None
    if kind != "TOTALORDER" or replaced not in (frozenset(), _ALL):
        return None
    return _Comparator(key, descending, not replaced)


def _place(block: Any, value: Any) -> int:
    """Which argument of the comparator a value is; -1 for what is none."""
    arguments = enumerate(block.arguments)
    return next((at for at, item in arguments if value is not None and item == value), -1)


def _side(value: Any) -> tuple[Any, frozenset[str]]:
    """What a side of a comparison is made of, and what of it is replaced by one number."""
    tested, found = [], set()
    while name_of(value) == "stablehlo.select":
        pred, chosen, rest = maker(value).operands
        kind = _replaced(pred, number(chosen))
        if not kind:
            break
        found.add(kind)
        tested.append(maker(pred).operands[0])
        value = rest
    return (value, frozenset(found)) if all(item == value for item in tested) else (None, _ALL)


def _replaced(pred: Any, chosen: float | None) -> str:
    """Which elements a condition is true of, if the chosen number may stand for them in an order.

    "NaN", "zeros", or empty.
    """
    sides = operands(pred, "stablehlo.compare")
    if sides is None or chosen is None or kind_of(maker(pred)) not in ("", "FLOAT"):
        return ""
    direction = direction_of(maker(pred))
    if direction == "NE" and sides[0] == sides[1] and math.isnan(chosen):
        return "NaN" if math.copysign(1, chosen) > 0 else ""
    return "zeros" if direction == "EQ" and number(sides[1]) == 0 == chosen else ""
