"""Reductions of elementwise expressions, which a target may compute without writing these."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

from pjrt_bridge.stablehlo.builder.builder import Builder, Value
from pjrt_bridge.stablehlo.builder.orders import inverse_order
from pjrt_bridge.stablehlo.builder.rewriting import Operation
from pjrt_bridge.stablehlo.kernel_attributes import Reduction
from pjrt_bridge.stablehlo.kernels import Kernels
from pjrt_bridge.stablehlo.known_numbers import maker
from pjrt_bridge.stablehlo.patterns import reading
from pjrt_bridge.stablehlo.patterns.following import Order, read_in_order
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
    for order in _orders(value):
        found = _reduced(kernels, b, operation, how, value, dims, order)
        if found is not None:
            return [found]
    return [kernels.reduce_in_parts(b, how, operation.operands[0], sorted(dims))]


def _orders(value: Any) -> Iterator[Order]:
    """Orders of dimensions in which the elements of a value may lie side by side."""
    shape = shape_of(value)
    plain = tuple(range(len(shape)))
    yield plain
    made = maker(value)
    for _ in range(_DEPTH):
        if made is None or not made.operands:
            return
        if made.name == "stablehlo.transpose":
            order = inverse_order(tuple(integers(made, "permutation")))
            if order != plain:
                yield order
            return
        sides = [item for item in made.operands if shape_of(item) == shape]
        turned = [item for item in sides if _is_turned(item)]
        made = maker((turned or sides)[0]) if sides else None


def _is_turned(value: Any) -> bool:
    made = maker(value)
    return made is not None and made.name == "stablehlo.transpose"


def _reduced(
    kernels: Kernels,
    b: Builder,
    operation: Operation,
    how: Reduction,
    value: Any,
    dims: frozenset[int],
    order: Order,
) -> Value | None:
    """The reduction of elements in an order: of neighbouring dimensions at once, then of others."""
    shape = shape_of(value)
    groups = [
        (is_reduced, math.prod(shape[dim] for dim in group))
        for is_reduced, group in groupby(
            (dim for dim in order if shape[dim] != 1), lambda dim: dim in dims
        )
    ]
    if not any(is_reduced for is_reduced, _ in groups):
        return None
    last = max(at for at, (is_reduced, _) in enumerate(groups) if is_reduced)
    before, behind = groups[:last], groups[last + 1 :]
    sizes = (math.prod(n for _, n in before), groups[last][1], math.prod(n for _, n in behind))
    if not math.prod(sizes):
        return None
    found = read_in_order(value, order)
    if found is None:
        return None
    operands = found.operands(b, operation)
    made = kernels.reduced_expression(b, found.expression, how, sizes, operands)
    if made is None:
        return None
    parts = b.reshape(made, [*(n for _, n in before), *(n for _, n in behind)])
    others = [at for at, (is_reduced, _) in enumerate(before) if is_reduced]
    if others:
        parts = Kernels().reduce(b, how, parts, others)
    kept = [dim for dim in order if dim not in dims]
    turned = b.reshape(parts, [shape[dim] for dim in kept])
    return b.transpose(turned, [kept.index(dim) for dim in sorted(kept)])
