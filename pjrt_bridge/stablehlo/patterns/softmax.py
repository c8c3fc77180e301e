"""Softmax, as frameworks write it: `exp(x - max(x)) / sum(exp(x - max(x)))`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pjrt_bridge.stablehlo.builder.builder import Builder, Value
from pjrt_bridge.stablehlo.builder.rewriting import Operation
from pjrt_bridge.stablehlo.kernels import Kernels
from pjrt_bridge.stablehlo.known_numbers import direction_of, dtype_of, maker, name_of, number
from pjrt_bridge.stablehlo.patterns.axes import Axes
from pjrt_bridge.stablehlo.patterns.reading import (
    are_floats,
    are_same,
    between,
    integers,
    is_widened,
    laid_out,
    operands,
    reduction_of,
)


@dataclass(frozen=True)
class Powers:
    """`exp(x - max(x))`.

    Attributes:
        x: the value.
        largest: what is subtracted.
        handle: the result.
    """

    x: Any
    largest: Any
    handle: Any


def powers(value: Any) -> Powers | None:
    """The exponentials that a value is in another layout or type; None where it is something else.

    That `largest` is the largest element is seen by `rows`.
    """
    found = laid_out(value, converted=are_floats)
    power = operands(found, "stablehlo.exponential")
    sides = None if power is None else operands(power[0], "stablehlo.subtract")
    return None if sides is None else Powers(sides[0], sides[1], found)


@dataclass(frozen=True)
class Rows:
    """Along what a softmax goes.

    Attributes:
        axes: of `x`.
        is_guarded: a row of -inf alone is zeros, and no NaN.
    """

    axes: frozenset[int]
    is_guarded: bool


def rows(axes: Axes, found: Powers, total: Any) -> Rows | None:
    """The rows over which exponentials are summed, and whose largest elements were subtracted.

    Args:
        axes: know those of `found.x`, or what it follows from.
        found: the exponentials.
        total: the sum, in the shape of what is divided by it.
    """
    largest, is_infinite = _guarded(found.largest, 0.0)
    largest = _above_nothing(laid_out(largest, converted=is_widened))
    summed, is_empty = _guarded(total, 1.0)
    if (is_infinite is None) != (is_empty is None):
        return None
    if is_infinite is not None and not (
        are_same(is_infinite, is_empty) and _is_minus_infinity(is_infinite, largest)
    ):
        return None
    summed = laid_out(summed, converted=are_floats)
    most, sums = _reduced(largest, "max"), _reduced(summed, "sum")
    if most is None or sums is None:
        return None
    if not are_same(laid_out(most, converted=is_widened), laid_out(found.x, converted=is_widened)):
        return None
    again = powers(sums)
    if again is None or not are_same(again.handle, found.handle):
        return None
    along = [_dropped(axes, value) for value in (largest, summed)]
    if along[0] is None or along[0] != along[1]:
        return None
    if not repeats(axes, found.x, found.largest, along[0]):
        return None
    return Rows(along[0], is_infinite is not None)


def _guarded(value: Any, other: float) -> tuple[Any, Any]:
    """What is repeated along the rows, and where another number takes its place, if anywhere."""
    while True:
        value = laid_out(value, converted=is_widened)
        if name_of(value) == "stablehlo.broadcast_in_dim":
            value = maker(value).operands[0]
            continue
        chosen = operands(value, "stablehlo.select")
        if chosen is not None and number(chosen[1]) == other:
            inner, again = _guarded(chosen[2], other)
            return (value, None) if again is not None else (inner, chosen[0])
        return value, None


def _above_nothing(value: Any) -> Any:
    """JAX takes the largest element and -inf."""
    sides = operands(value, "stablehlo.maximum")
    for side, other in ((0, 1), (1, 0)):
        if sides is not None and number(sides[side]) == -math.inf:
            return laid_out(sides[other], converted=is_widened)
    return value


def _is_minus_infinity(pred: Any, value: Any) -> bool:
    sides = operands(pred, "stablehlo.compare")
    if sides is None or direction_of(maker(pred)) != "EQ":
        return False
    return number(sides[1]) == -math.inf and are_same(
        _above_nothing(laid_out(sides[0], converted=is_widened)), value
    )


def _reduced(value: Any, reduction: str) -> Any:
    """What a reduction reduces; None where the value is none of that kind."""
    made = maker(value)
    if made is None or reduction_of(made) != reduction:
        return None
    return made.operands[0]


def _dropped(axes: Axes, reduced: Any) -> frozenset[int] | None:
    made = maker(reduced)
    dims = axes.of(made.operands[0])
    if dims is None:
        return None
    return frozenset(axis for dim in integers(made, "dimensions") for axis in dims[dim])


def repeats(axes: Axes, x: Any, repeated: Any, along: frozenset[int]) -> bool:
    """Whether a value has what belongs to each row of `x`, repeated along the rows."""
    dims, others = axes.of(x), axes.of(repeated)
    if dims is None or others is None:
        return False
    own = {axis for dim in dims for axis in dim}
    for dim, other in zip(dims, others, strict=True):
        if set(dim) & along:
            if not set(dim) <= along or set(other) & own:
                return False
        elif dim != other:
            return False
    return True


def softmax(kernels: Kernels, b: Builder, operation: Operation) -> Sequence[Value] | None:
    """A softmax whose exponentials nothing else needs."""
    numerator, total = operation.handle.operands
    found = powers(numerator)
    if found is None:
        return None
    axes, root = Axes(), operation.handle.results[0]
    axes.begin(laid_out(found.x, converted=is_widened))
    along = rows(axes, found, total)
    dims = axes.of(found.x)
    if along is None or dims is None or along.is_guarded or axes.of(root) != dims:
        return None
    if not repeats(axes, numerator, total, along.axes):
        return None
    dim = [at for at, its in enumerate(dims) if set(its) & along.axes]
    steps = between(operation.handle, [found.x])
    if len(dim) != 1 or steps is None or not is_alone(steps, found.x):
        return None
    if dtype_of(found.x) != dtype_of(root):
        return None
    made = kernels.softmax(b, operation.value(found.x), dim[0])
    return None if made is None else [made]


def is_alone(steps: Sequence[Any], start: Any) -> bool:
    """Whether nothing but the last of these operations needs what the others make of a value."""
    follow, inside = {start}, set(steps)
    for step in steps[:-1]:
        if any(operand in follow for operand in step.operands):
            for result in step.results:
                follow.add(result)
                if any(_user(use) not in inside for use in result.uses):
                    return False
    return True


def _user(use: Any) -> Any:
    return getattr(use.owner, "operation", use.owner)
