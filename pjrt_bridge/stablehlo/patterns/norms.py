"""Layer norm and RMS norm, as frameworks write them: `(x - mean) * rsqrt(variance + eps)`.

With the weight, anywhere in the product, and the bias behind it. In RMS norm the mean is 0.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from pjrt_bridge.stablehlo.builder.builder import Builder, Value
from pjrt_bridge.stablehlo.builder.rewriting import Operation
from pjrt_bridge.stablehlo.kernel_attributes import Norm
from pjrt_bridge.stablehlo.kernels import Kernels
from pjrt_bridge.stablehlo.known_numbers import direction_of, dtype_of, maker, name_of, number
from pjrt_bridge.stablehlo.patterns.axes import Axes
from pjrt_bridge.stablehlo.patterns.reading import (
    are_floats,
    between,
    integers,
    is_widened,
    operands,
    reduction_of,
    shape_of,
)
from pjrt_bridge.stablehlo.patterns.softmax import is_alone, repeats

_MOST_FACTORS = 4
"""The value, the reciprocal deviation, and a weight or two."""


@dataclass(frozen=True)
class _Factors:
    """What a norm multiplies.

    Attributes:
        x: the value that is normalized.
        count: how many of its last dimensions are normalized together.
        eps: is added to the variance.
        is_centered: the mean is subtracted.
        weights: factors that are repeated along all other dimensions, before they are.
    """

    x: Any
    count: int
    eps: float
    is_centered: bool
    weights: Sequence[Any]


def norm(kernels: Kernels, b: Builder, operation: Operation) -> Sequence[Value] | None:
    """A product, or the addition of a bias to one, that nothing else needs a part of."""
    root = operation.handle.results[0]
    if not dtype_of(root).is_float:
        return None
    found, bias = _factors(root), None
    if found is None and operation.name == "stablehlo.add":
        for main, side in (operation.handle.operands, reversed(operation.handle.operands)):
            found = _factors(_unconverted(main))
            bias = None if found is None else _repeated(side, found.count)
            if bias is not None:
                break
        else:
            return None
    if found is None or (bias is None and _goes_on(root, found.count)):
        return None
    steps = between(operation.handle, [found.x, *found.weights, *([] if bias is None else [bias])])
    if steps is None or not is_alone(steps, found.x):
        return None
    shape = shape_of(found.x)[len(shape_of(found.x)) - found.count :]
    weight = None
    for item in found.weights:
        side = b.reshape(operation.value(item), shape)
        weight = side if weight is None else b.multiply(weight, side)
    shift = None if bias is None else b.reshape(operation.value(bias), shape)
    x = operation.value(found.x)
    x = x.widened if x.widened is not None and x.widened.dtype.is_float else x
    how = Norm(found.count, found.eps, found.is_centered, dtype_of(root))
    made = kernels.normalize(b, x, weight, shift, how)
    return None if made is None else [made[0]]


def _factors(root: Any) -> _Factors | None:
    """What a product multiplies, if it is a norm."""
    if name_of(root) != "stablehlo.multiply":
        return None
    for factor in _multiplied(root, ()):
        found = _deviation(factor)
        if found is None:
            continue
        squared, eps, variance = found
        center = operands(squared, "stablehlo.subtract")
        for x in (squared,) if center is None else (center[0], squared):
            made = _with(root, factor, x, squared, variance, eps)
            if made is not None:
                return made
    return None


def _with(
    root: Any, deviation: Any, x: Any, squared: Any, variance: Any, eps: float
) -> _Factors | None:
    """The factors of a product, where the value that is normalized is known."""
    axes, shape = Axes(), shape_of(x)
    axes.begin(x)
    summed = _summed(axes, variance)
    dims = axes.of(x)
    if summed is None or dims is None or shape_of(root) != shape:
        return None
    along = frozenset(summed[1])
    count = len(list(takewhile(lambda axes: along.issuperset(axes), reversed(dims))))
    first = len(shape) - count
    size = math.prod(shape[first:])
    if not count or along != {axis for its in dims[first:] for axis in its}:
        return None
    if not _is_mean_of(variance, size) or not repeats(axes, x, deviation, along):
        return None
    is_centered = squared != x
    if is_centered and not _is_centered(axes, squared, x, along, size):
        return None
    values, weights = 0, []
    for factor in _multiplied(root, (x, squared)):
        if factor == deviation:
            continue
        if _is_centered(axes, factor, x, along, size) if is_centered else factor == x:
            values += 1
            continue
        weights.append(_repeated(factor, count))
    if values != 1 or any(item is None for item in weights):
        return None
    return _Factors(x, count, eps, is_centered, weights)


def _multiplied(root: Any, values: Sequence[Any], depth: int = _MOST_FACTORS) -> Iterator[Any]:
    """The factors of a product of products; what is one of the values is one factor."""
    root = _unconverted(root) if root not in values else root
    sides = None if root in values or not depth else operands(root, "stablehlo.multiply")
    if sides is None or sides[0] == sides[1]:
        yield root
        return
    for side in sides:
        yield from _multiplied(side, values, depth - 1)


def _unconverted(value: Any) -> Any:
    """What was rounded, or widened from a rounded result, of floats."""
    while True:
        source = operands(value, "stablehlo.convert")
        if source is None or not are_floats(dtype_of(source[0]), dtype_of(value)):
            return value
        if is_widened(dtype_of(source[0]), dtype_of(value)) and _is_first(source[0]):
            return value
        value = source[0]


def _is_first(value: Any) -> bool:
    """Whether a value is no result of a product: a norm widens the value that it takes."""
    return name_of(value) not in ("stablehlo.multiply", "stablehlo.convert", "stablehlo.subtract")


def _spread(value: Any) -> Any:
    """What a value is repeated from."""
    return _behind(value, _SPREAD)


def _deviation(factor: Any) -> tuple[Any, float, Any] | None:
    """What is squared, what is added to the variance, and the variance, of `rsqrt(variance + eps)`.

    The variance is a mean of squares.
    """
    root = operands(_spread(factor), "stablehlo.rsqrt")
    sides = None if root is None else operands(_spread(root[0]), "stablehlo.add")
    for variance, added in () if sides is None else (sides, sides[::-1]):
        eps = number(added)
        total = None if eps is None else _total(variance)
        if eps is None or total is None:
            continue
        squared = _squared(_summand(total[0]))
        if squared is not None:
            return squared, eps, variance
    return None


def _squared(value: Any) -> Any:
    """What a square is the square of."""
    whole = operands(value, "chlo.square")
    sides = operands(value, "stablehlo.multiply") if whole is None else [*whole, *whole]
    return sides[0] if sides is not None and sides[0] == sides[1] else None


def _total(mean: Any) -> tuple[Any, float] | None:
    """The sum, and what it is divided by, of a mean.

    JAX's variance is a NaN where it would be divided by no more than 0.
    """
    mean = _spread(mean)
    chosen = operands(mean, "stablehlo.select")
    if chosen is not None and _is_above(chosen[0]):
        mean = _spread(chosen[1])
    for name, power in (("stablehlo.divide", 1), ("stablehlo.multiply", -1)):
        sides = operands(mean, name)
        divisor = None if sides is None else number(sides[1])
        if sides is not None and divisor:
            return sides[0], divisor**power
    return None


def _is_above(pred: Any) -> bool:
    sides = operands(_spread(pred), "stablehlo.compare")
    if sides is None or direction_of(maker(_spread(pred))) != "GT":
        return False
    left, right = map(number, sides)
    return left is not None and right is not None and left > right


def _is_mean_of(mean: Any, size: int) -> bool:
    found = _total(mean)
    return found is not None and math.isclose(found[1], size, rel_tol=1e-6)


def _summand(total: Any) -> Any:
    """What is summed, by one reduction or by several ones after each other."""
    while True:
        total = _passed(total)
        made = maker(total)
        if made is None or reduction_of(made) != "sum":
            return total
        total = made.operands[0]


def _passed(value: Any) -> Any:
    """What a sum is of, or a reduction gives, behind what leaves its elements alone."""
    return _behind(value, _PASSED)


def _behind(value: Any, names: Collection[str]) -> Any:
    """The first value that none of these operations makes, each of its one operand."""
    while name_of(value) in names:
        value = maker(value).operands[0]
    return value


_SPREAD = ("stablehlo.broadcast_in_dim", "stablehlo.reshape")
_PASSED = (*_SPREAD, "stablehlo.optimization_barrier")


def _summed(axes: Axes, mean: Any) -> tuple[Any, set[int]] | None:
    """What is summed for a mean, and the axes that it is summed over."""
    found = _total(mean)
    if found is None:
        return None
    dropped: list[tuple[Any, list[int]]] = []
    value = _passed(found[0])
    while (made := maker(value)) is not None and reduction_of(made) == "sum":
        dropped.append((made.operands[0], integers(made, "dimensions")))
        value = _passed(made.operands[0])
    # The axes are known when all reshapes have been followed, which part them.
    if axes.of(mean) is None and axes.of(found[0]) is None:
        return None
    over: set[int] = set()
    for source, dims in dropped:
        known = axes.of(source)
        if known is None:
            return None
        over.update(axis for dim in dims for axis in known[dim])
    return (value, over) if over else None


def _is_centered(axes: Axes, value: Any, x: Any, along: frozenset[int], size: int) -> bool:
    """Whether a value is `x - mean(x)`."""
    sides = operands(value, "stablehlo.subtract")
    if sides is None or sides[0] != x:
        return False
    mean = _summed(axes, sides[1])
    return (
        mean is not None
        and mean[0] == x
        and mean[1] == along
        and _is_mean_of(sides[1], size)
        and repeats(axes, x, sides[1], along)
    )


def _repeated(value: Any, count: int) -> Any:
    """What a value is repeated from along all but the last dimensions; None of another one."""
    value = _unconverted(value)
    shape, made = shape_of(value), maker(value)
    if made is None or made.name != "stablehlo.broadcast_in_dim":
        return None
    source = made.operands[0]
    sizes = [1] * len(shape)
    for dim, size in zip(integers(made, "broadcast_dimensions"), shape_of(source), strict=True):
        sizes[dim] = size
    first = len(shape) - count
    if any(size > 1 for size in sizes[:first]) or tuple(sizes[first:]) != shape[first:]:
        return None
    return source


def _goes_on(root: Any, count: int) -> bool:
    """Whether the only use of a result is another part of a norm."""
    while True:
        uses = list(root.uses)
        if len(uses) != 1:
            return False
        user = getattr(uses[0].owner, "operation", uses[0].owner)
        if user.name == "stablehlo.convert" and dtype_of(user.results[0]).is_float:
            root = user.results[0]
            continue
        if user.name not in ("stablehlo.multiply", "stablehlo.add"):
            return False
        others = [item for item in user.operands if item != root]
        return len(others) == 1 and _repeated(others[0], count) is not None
