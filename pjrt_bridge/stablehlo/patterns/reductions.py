"""Reductions of elementwise expressions, which a target may compute without writing these."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence, Set
from itertools import groupby
from typing import Any, NamedTuple

from pjrt_bridge.stablehlo.builder.builder import Builder, Value
from pjrt_bridge.stablehlo.builder.orders import inverse_order, row_major_steps
from pjrt_bridge.stablehlo.builder.rewriting import Operation
from pjrt_bridge.stablehlo.kernel_attributes import Reduction
from pjrt_bridge.stablehlo.kernels import Kernels
from pjrt_bridge.stablehlo.known_numbers import maker
from pjrt_bridge.stablehlo.patterns import reading
from pjrt_bridge.stablehlo.patterns.accesses import Access
from pjrt_bridge.stablehlo.patterns.following import read_in_order
from pjrt_bridge.stablehlo.patterns.reading import integers, shape_of

_DEPTH = 6
"""Operations that are followed from a value to a transposition."""


def reduction(kernels: Kernels, b: Builder, operation: Operation) -> Sequence[Value] | None:
    """`reduce` of one array, by `Kernels.reduced_expression`, else by `Kernels.reduce_in_parts`."""
    how = reading.reduction_of(operation.handle)
    if how is None or not kernels.reduces_last(how, operation.operands[0]):
        return None
    value = operation.handle.operands[0]
    dims = frozenset(integers(operation.handle, "dimensions"))
    for access in _accesses(value):
        found = _reduced(kernels, b, operation, how, value, dims, access)
        if found is not None:
            return [found]
    return [kernels.reduce_in_parts(b, how, operation.operands[0], sorted(dims))]


def _accesses(value: Any) -> Iterator[Access]:
    """All elements of a value in orders in which they may lie side by side."""
    yield Access.whole(shape_of(value))
    turned = _turned(value, _DEPTH)
    if turned is not None:
        yield turned


def _turned(value: Any, depth: int) -> Access | None:
    """All elements of a value as they lie in what a transposition takes that it is computed of.

    Row-major positions are those of the transposition: reshapes do not change them.
    """
    made = maker(value)
    if made is None or not depth:
        return None
    shape = shape_of(value)
    if made.name == "stablehlo.transpose":
        order = inverse_order(tuple(integers(made, "permutation")))
        return None if order == tuple(range(len(shape))) else Access.whole(shape, order)
    is_moved = made.name == "stablehlo.reshape"
    sides = (item for item in made.operands if is_moved or shape_of(item) == shape)
    return next(filter(None, (_turned(item, depth - 1) for item in sides)), None)


class _Part(NamedTuple):
    """Elements of one dimension that an access reads one after the other.

    Attributes:
        is_reduced: the dimension is.
        size: how many.
        step: row-major distance of one from the next.
    """

    is_reduced: bool
    size: int
    step: int


def _parts(shape: Sequence[int], dims: Set[int], access: Access) -> list[_Part] | None:
    """The dimensions of an access, divided where it goes on to another dimension of the value."""
    own = row_major_steps(shape)
    found: list[_Part] = []
    for left, step in access.dims:
        inner: list[_Part] = []
        for dim in reversed(range(len(shape))):
            end = own[dim] * shape[dim]
            if left == 1 or shape[dim] == 1 or end <= step:
                continue
            size = min(left, end // step)
            if end % step or left % size:
                return None
            inner.append(_Part(dim in dims, size, step))
            left //= size
            step *= size
        found += reversed(inner)
    return found


def _reduced(
    kernels: Kernels,
    b: Builder,
    operation: Operation,
    how: Reduction,
    value: Any,
    dims: Set[int],
    access: Access,
) -> Value | None:
    """The reduction of elements in an order: of neighbouring dimensions at once, then of others."""
    shape = shape_of(value)
    parts = _parts(shape, dims, access)
    if parts is None or not any(part.is_reduced for part in parts):
        return None
    groups = [
        (is_reduced, math.prod(part.size for part in group))
        for is_reduced, group in groupby(parts, lambda part: part.is_reduced)
    ]
    last = max(at for at, (is_reduced, _) in enumerate(groups) if is_reduced)
    before, behind = groups[:last], groups[last + 1 :]
    sizes = (math.prod(n for _, n in before), groups[last][1], math.prod(n for _, n in behind))
    found = read_in_order(value, access) if math.prod(sizes) else None
    if found is None:
        return None
    operands = found.operands(b, operation)
    made = kernels.reduced_expression(b, found.expression, how, sizes, operands)
    if made is None:
        return None
    made = b.reshape(made, [*(n for _, n in before), *(n for _, n in behind)])
    others = [at for at, (is_reduced, _) in enumerate(before) if is_reduced]
    if others:
        made = Kernels().reduce(b, how, made, others)
    kept = [part for part in parts if not part.is_reduced]
    made = b.reshape(made, [part.size for part in kept])
    made = b.transpose(made, sorted(range(len(kept)), key=lambda at: -kept[at].step))
    return b.reshape(made, [size for dim, size in enumerate(shape) if dim not in dims])
