"""Ranges of the integers that a graph computes, as far as they follow from the graph alone.

A position that is known to be in range needs no check when the program runs.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from pjrt_bridge.torch_interop import compat

Range = tuple[Any, Any]
"""The smallest and the largest number; symbolic where sizes are, infinite where not known."""

_DEEPEST = 64
_RangeOf = Callable[[Any], Range | None]
_RangeRule = Callable[..., Range | None]


def is_within(index: Any, low: Any, high: Any) -> bool:
    """Whether a node's integers are known to lie from one number to another, or to infinity."""
    found = known_range(index)
    if found is None:
        return False
    return _is_no_more(low, found[0]) and _is_no_more(found[1], high)


def known_range(node: Any, depth: int = _DEEPEST) -> Range | None:
    """Between which numbers a node's elements, or a number, lie; None where it is not known.

    Args:
        node: of a graph, or a number.
        depth: how many nodes before it are looked at, one behind the other.
    """
    if isinstance(node, fx.Node):
        promise = compat.promise(node)
        if isinstance(promise, torch.Tensor):
            return _of_tensor(node, promise, depth - 1) if depth else None
        node = promise
    return (node, node) if isinstance(node, (int, float, torch.SymInt)) else None


def _of_tensor(node: fx.Node, promise: torch.Tensor, depth: int) -> Range | None:
    if node.target is operator.getitem and isinstance(node.args[0], fx.Node) and node.args[1] == 1:
        # The second result of what finds elements is where they are.
        node = node.args[0]
        rule = _FINDING.get(str(compat.operator_name(node.target)))
    else:
        rule = _RULES.get(str(compat.operator_name(node.target)))
    if rule is None:
        return (0, 1) if promise.dtype is torch.bool else None
    args, kwargs = fx.map_arg((node.args, node.kwargs), _number_or_node)
    return rule(lambda item: known_range(item, depth), *args, **kwargs)


def _number_or_node(node: fx.Node) -> Any:
    promise = compat.promise(node)
    return node if isinstance(promise, (torch.Tensor, tuple, list)) else promise


def _is_no_more(one: Any, other: Any) -> bool:
    """Whether a number is known not to be larger than another."""
    if _is(one, -math.inf) or _is(other, math.inf):
        return True
    if _is(one, math.inf) or _is(other, -math.inf):
        return False
    return compat.sign(other - one) == 1


def _is(number: Any, infinity: float) -> bool:
    return isinstance(number, float) and number == infinity


# -- rules: `range_of` gives the range of an argument, or None -------------------------------------


def _same(range_of: _RangeOf, x: Any, *_: Any, **__: Any) -> Range | None:
    return range_of(x)


def _counted(start: Any, end: Any, step: Any) -> Range | None:
    """Of 'arange' with integers; also where it is empty."""
    if not all(isinstance(number, (int, torch.SymInt)) for number in (start, end, step)):
        return None
    return (start, end - 1) if compat.sign(step) == 1 else None


def _arange(_: _RangeOf, *ends: Any, **__: Any) -> Range | None:
    start, end, step = ends if len(ends) == 3 else (*ends, 1) if len(ends) == 2 else (0, *ends, 1)
    return _counted(start, end, step)


def _iota(_: _RangeOf, length: Any, *, start: Any, step: Any, **__: Any) -> Range | None:
    return _counted(start, start + length * step, step)


def _among(range_of: _RangeOf, index: Any, sizes: Any, ignored: Any, _: str) -> Range | None:
    """Of positions that are checked, where none is ignored."""
    return range_of(index) if ignored is not None else (0, math.prod(sizes) - 1)


def _filled(range_of: _RangeOf, _: Any, number: Any, **__: Any) -> Range | None:
    return range_of(number)


def _both(range_of: _RangeOf, x: Any, y: Any) -> tuple[Range, Range] | None:
    one, other = range_of(x), range_of(y)
    if one is None or other is None:
        return None
    # Sums of integers that may have any size overflow.
    ends = (*one, *other)
    return None if any(_is(abs(end), math.inf) for end in ends) else (one, other)


def _sum(range_of: _RangeOf, x: Any, y: Any, *, alpha: Any = 1) -> Range | None:
    found = _both(range_of, x, y)
    if found is None or compat.is_symbolic(alpha) or alpha != 1:
        return None
    (low, high), (other_low, other_high) = found
    return low + other_low, high + other_high


def _difference(range_of: _RangeOf, x: Any, y: Any, *, alpha: Any = 1) -> Range | None:
    found = _both(range_of, x, y)
    if found is None or compat.is_symbolic(alpha) or alpha != 1:
        return None
    (low, high), (other_low, other_high) = found
    return low - other_high, high - other_low


def _product(range_of: _RangeOf, x: Any, y: Any) -> Range | None:
    """Of numbers that are not negative."""
    found = _both(range_of, x, y)
    if found is None or not all(compat.sign(low) == 1 for low, _ in found):
        return None
    (low, high), (other_low, other_high) = found
    return low * other_low, high * other_high


def _rest(_: _RangeOf, __: Any, divisor: Any) -> Range | None:
    """Of a division by a positive number, which is rounded down."""
    known = isinstance(divisor, (int, torch.SymInt)) and compat.sign(divisor - 1) == 1
    return (0, divisor - 1) if known else None


def _clamped(range_of: _RangeOf, x: Any, low: Any = None, high: Any = None) -> Range | None:
    found = range_of(x) or (-math.inf, math.inf)
    low = found[0] if low is None else low
    high = found[1] if high is None else high
    known = all(isinstance(end, (int, float, torch.SymInt)) for end in (low, high))
    return (low, high) if known and _is_no_more(low, high) else None


def _either(range_of: _RangeOf, *items: Any) -> Range | None:
    """Elements of several tensors."""
    ranges = [range_of(item) for item in items]
    first, *others = ranges
    if first is None:
        return None
    low, high = first
    for other in others:
        if other is None:
            return None
        lower, higher = _is_no_more(other[0], low), _is_no_more(high, other[1])
        if not (lower or _is_no_more(low, other[0])) or not (higher or _is_no_more(other[1], high)):
            return None
        low, high = other[0] if lower else low, other[1] if higher else high
    return low, high


def _where(range_of: _RangeOf, _: Any, x: Any, y: Any) -> Range | None:
    return _either(range_of, x, y)


def _joined(range_of: _RangeOf, tensors: Sequence[Any], *_: Any) -> Range | None:
    return _either(range_of, *tensors)


def _place(_: _RangeOf, x: Any, dim: Any = None, *__: Any, **___: Any) -> Range | None:
    """Of the place of an element along a dimension, or in the whole tensor."""
    promise = compat.promise(x)
    return 0, (promise.numel() if dim is None or not promise.dim() else promise.shape[dim]) - 1


def _sorted(_: _RangeOf, x: Any, dim: Any = -1, *__: Any, **___: Any) -> Range | None:
    return _place(_, x, dim)


def _largest(_: _RangeOf, x: Any, __: Any, dim: Any = -1, *___: Any) -> Range | None:
    return _place(_, x, dim)


def _pooled(count: int) -> _RangeRule:
    """Of places in an image or a volume."""

    def rule(_: _RangeOf, x: Any, *__: Any, **___: Any) -> Range | None:
        return 0, math.prod(compat.promise(x).shape[-count:]) - 1

    return rule


def _permuted(_: _RangeOf, *arguments: Any, **__: Any) -> Range | None:
    return 0, arguments[-1] - 1


_RULES: dict[str, _RangeRule] = {
    **dict.fromkeys(
        (
            "aten._to_copy.default",
            "aten._unsafe_view.default",
            "aten.alias.default",
            "aten.clone.default",
            "aten.expand.default",
            "aten.flip.default",
            "aten.index_select.default",
            "aten.permute.default",
            "aten.repeat.default",
            "aten.reshape.default",
            "aten.roll.default",
            "aten.select.int",
            "aten.slice.Tensor",
            "aten.squeeze.dim",
            "aten.squeeze.dims",
            "aten.t.default",
            "aten.transpose.int",
            "aten.unsqueeze.default",
            "aten.view.default",
            "prims.convert_element_type.default",
        ),
        _same,
    ),
    "aten.add.Tensor": _sum,
    "aten.arange.default": _arange,
    "aten.arange.start": _arange,
    "aten.arange.start_step": _arange,
    "aten.argmax.default": _place,
    "aten.argmin.default": _place,
    "aten.argsort.default": _place,
    "aten.cat.default": _joined,
    "aten.clamp.default": _clamped,
    "aten.full.default": _filled,
    "aten.full_like.default": _filled,
    "aten.mul.Tensor": _product,
    "aten.randperm.default": _permuted,
    "pjrt_bridge.randperm.default": _permuted,
    "aten.remainder.Scalar": _rest,
    "aten.scalar_tensor.default": _same,
    "aten.stack.default": _joined,
    "aten.sub.Tensor": _difference,
    "aten.where.self": _where,
    compat.POSITIONS: _among,
    "prims.iota.default": _iota,
}
_FINDING: dict[str, _RangeRule] = {
    "aten.max.dim": _place,
    "aten.max_pool2d_with_indices.default": _pooled(2),
    "aten.max_pool3d_with_indices.default": _pooled(3),
    "aten.min.dim": _place,
    "aten.sort.default": _sorted,
    "aten.sort.stable": _sorted,
    "aten.topk.default": _largest,
}
"""Operators whose second result is where the first was found."""
