"""Values of programs that others wrote, read from where they are used towards their operands.

Handles are MLIR's values and operations.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pjrt_bridge.dtypes import DType
from pjrt_bridge.stablehlo import bindings
from pjrt_bridge.stablehlo.kernel_attributes import Reduction
from pjrt_bridge.stablehlo.known_numbers import dtype_of, maker, name_of, number

_REDUCTIONS: Mapping[str, Reduction] = {
    "stablehlo.add": "sum",
    "stablehlo.multiply": "prod",
    "stablehlo.maximum": "max",
    "stablehlo.minimum": "min",
}
_NEUTRAL = {"sum": 0.0, "prod": 1.0, "max": -math.inf, "min": math.inf}
_DEPTH = 12
"""Operations that are followed to see that two values are the same."""


def operands(value: Any, name: str) -> Sequence[Any] | None:
    """The operands of an operation of this name whose result a value is; None of another one."""
    made = maker(value)
    return list(made.operands) if made is not None and made.name == name else None


def shape_of(value: Any) -> tuple[int, ...]:
    """The shape of a value."""
    return tuple(value.type.shape)


def integers(operation: Any, name: str) -> list[int]:
    """An attribute that is an array of integers."""
    return [int(item) for item in operation.attributes[name]]


@dataclass(frozen=True)
class Product:
    """A `dot_general`.

    Attributes:
        handle: the operation.
        batch: of each side the dimensions of batches.
        summed: of each side the dimensions that are summed over.
    """

    handle: Any
    batch: tuple[Sequence[int], Sequence[int]]
    summed: tuple[Sequence[int], Sequence[int]]

    @staticmethod
    def of(handle: Any) -> Product:
        """A `dot_general` with its dimensions."""
        numbers = bindings.load().stablehlo.DotDimensionNumbers(
            handle.attributes["dot_dimension_numbers"]
        )
        return Product(
            handle,
            (list(numbers.lhs_batching_dimensions), list(numbers.rhs_batching_dimensions)),
            (list(numbers.lhs_contracting_dimensions), list(numbers.rhs_contracting_dimensions)),
        )

    def free(self, side: int) -> list[int]:
        """The dimensions of a side that are in the result alone."""
        taken = {*self.batch[side], *self.summed[side]}
        rank = len(shape_of(self.handle.operands[side]))
        return [dim for dim in range(rank) if dim not in taken]


def product_of(value: Any) -> Product | None:
    """The `dot_general` whose result a value is; None where it is something else."""
    made = maker(value)
    is_product = made is not None and made.name == "stablehlo.dot_general"
    return Product.of(made) if is_product else None


def laid_out(value: Any, *, converted: Callable[[DType, DType], bool] | None = None) -> Any:
    """What a value has the elements of, in another order or shape.

    Args:
        value: where to begin.
        converted: whether to go on through a conversion, by the types before and after it.
    """
    while True:
        made = maker(value)
        if made is None:
            return value
        source = made.operands[0] if len(made.operands) else None
        if made.name == "stablehlo.convert":
            if converted is None or not converted(dtype_of(source), dtype_of(value)):
                return value
        elif made.name not in ("stablehlo.transpose", "stablehlo.reshape"):
            return value
        value = source


def is_widened(before: DType, after: DType) -> bool:
    """Whether a conversion of floats changes no number."""
    return before == after or (before.is_float and after.is_float and before.bits < after.bits)


def are_floats(before: DType, after: DType) -> bool:
    """Whether a conversion is one of floats."""
    return before.is_float and after.is_float


def reduction_of(operation: Any) -> Reduction | None:
    """What a `reduce` of one array of floats computes, from the value that changes nothing."""
    if operation.name != "stablehlo.reduce" or len(operation.operands) != 2:
        return None
    steps = list(operation.regions[0].blocks[0].operations)
    arguments = list(operation.regions[0].blocks[0].arguments)
    if len(steps) != 2:
        return None
    step, end = (view.operation for view in steps)
    if len(step.operands) != 2 or not all(item in arguments for item in step.operands):
        return None
    if step.operands[0] == step.operands[1] or list(end.operands) != list(step.results):
        return None
    found = _REDUCTIONS.get(step.name)
    start = operation.operands[1]
    if found is None or name_of(start) != "stablehlo.constant" or not dtype_of(start).is_float:
        return None
    return found if number(start) == _NEUTRAL[found] else None


def are_same(x: Any, y: Any, depth: int = _DEPTH) -> bool:
    """Whether two values are the same for certain: by the same operations of the same values."""
    if x == y:
        return True
    left, right = maker(x), maker(y)
    if left is None or right is None or not depth or left.name != right.name:
        return False
    if left.name not in _REPEATABLE or x.type != y.type:
        return False
    if _attributes(left) != _attributes(right):
        return False
    pairs = zip(left.operands, right.operands, strict=True)
    return all(are_same(one, other, depth - 1) for one, other in pairs)


def _attributes(operation: Any) -> dict[str, Any]:
    return {name: operation.attributes[name] for name in operation.attributes}


_REPEATABLE = frozenset(
    f"stablehlo.{name}"
    for name in (
        *("broadcast_in_dim", "compare", "constant", "convert", "exponential", "reshape"),
        *("subtract", "transpose"),
    )
)


def between(root: Any, inputs: Iterable[Any], limit: int = 200) -> list[Any] | None:
    """The operations that lead from values to an operation, in an order that they can run in.

    Args:
        root: the last operation.
        inputs: values that are given; those of other blocks are given, too.
        limit: how many there may be.

    Returns:
        With `root` at the end; None where there are more, or one leads to a parameter.
    """
    given = set(inputs)
    found: list[Any] = []
    seen: set[Any] = set()

    def visit(operation: Any) -> bool:
        for operand in operation.operands:
            made = maker(operand)
            if operand in given or (made is not None and made in seen):
                continue
            if made is None or len(seen) == limit:
                return False
            seen.add(made)
            if made.block == root.block and not visit(made):
                return False
        found.append(operation)
        return True

    return found if visit(root) else None
