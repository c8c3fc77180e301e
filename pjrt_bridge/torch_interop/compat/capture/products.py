"""Products of several tensors: which are multiplied first.

Torch looks for the best order, for which it takes the values of all sizes. While Dynamo traces for
this backend, the order is the best one for the sizes of the call that is traced.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import torch
from torch._dynamo.variables.base import VariableTracker
from torch._dynamo.variables.lists import BaseListVariable
from torch.backends import opt_einsum

from pjrt_bridge.torch_interop.compat.capture import sized_functions as sized
from pjrt_bridge.torch_interop.compat.capture.sized_calls import (
    has_symbolic_shape,
    inlined,
    shape_of,
    trace_calls,
)
from pjrt_bridge.torch_interop.compat.promises.values import hint


def trace_products(is_for_us: Callable[[Any], bool]) -> None:
    """Have Dynamo trace products of several tensors in an order that does not depend on sizes.

    Args:
        is_for_us: says of Dynamo's translator whether it traces for this backend.
    """
    trace_calls(torch.functional.einsum, _einsum, is_for_us)
    for function in (torch.linalg.multi_dot, torch.functional.chain_matmul):
        trace_calls(function, _multi_dot, is_for_us)


def _einsum(tx: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    if kwargs or not args:
        return None
    several = _tensors(args[1:])
    finder = opt_einsum.get_opt_einsum()
    shapes = _shapes(several)
    if (
        finder is None
        or not opt_einsum.enabled
        or not args[0].is_python_constant()
        or len(several) < 3
        or shapes is None
    ):
        return None
    text, how = args[0].as_python_constant(), opt_einsum.strategy
    pairs, _ = finder.contract_path(text, *shapes, shapes=True, optimize=how)
    order = VariableTracker.build(tx, tuple(at for pair in pairs for at in pair))
    return inlined(tx, sized.einsum, (args[0], order, *several), {})


def _multi_dot(tx: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    if kwargs or not args:
        return None
    several = _tensors(args)
    shapes = _shapes(several)
    if (
        shapes is None
        or len(shapes) < 2
        or any(len(shape) != 2 for shape in shapes[1:-1])
        or any(len(shape) not in (1, 2) for shape in (shapes[0], shapes[-1]))
    ):
        return None
    rows = shapes[0][0] if len(shapes[0]) == 2 else 1
    order = VariableTracker.build(tx, _order(rows, *(_columns(shape) for shape in shapes)))
    return inlined(tx, sized.multi_dot, (order, *several), {})


def _columns(shape: Sequence[int]) -> int:
    return shape[1] if len(shape) == 2 else 1


def _order(*sizes: int) -> tuple[int, ...]:
    """Which matrix to multiply with the next one, again and again until one is left.

    Args:
        sizes: the rows of the first matrix, then the columns of each.
    """

    @cache
    def cheapest(first: int, last: int) -> tuple[int, tuple[int, ...]]:
        """The multiplications of a range of matrices, and where each pair is in what is left."""
        if first == last:
            return 0, ()
        choices = []
        for middle in range(first, last):
            left, right = cheapest(first, middle), cheapest(middle + 1, last)
            work = left[0] + right[0] + sizes[first] * sizes[middle + 1] * sizes[last + 1]
            # The matrices on the left are one by then.
            moved = tuple(at + 1 for at in right[1])
            choices.append((work, (*left[1], *moved, 0)))
        return min(choices)

    return cheapest(0, len(sizes) - 2)[1]


def _tensors(args: Sequence[Any]) -> list[Any]:
    """The arguments of a call that are tensors, one by one or in a list."""
    several = args[0].items if args and isinstance(args[0], BaseListVariable) else args
    return [item.realize() for item in several]


def _shapes(several: Sequence[Any]) -> list[tuple[int, ...]] | None:
    """The shapes of the call that is traced; None where torch may decide the order."""
    if not any(map(has_symbolic_shape, several)):
        return None
    shapes = [tuple(map(hint, shape_of(item))) for item in several]
    return None if any(size is None for shape in shapes for size in shape) else shapes
