"""Operations over the dimensions that a program merges, so that each of them can be divided.

PyTorch computes linear layers of (time, batch, width) as products of matrices of
(time * batch, width). A sharding of the merged dimension can state that its first factor is
divided, not that another one is alone, so Shardy's propagation ends there and every device computes
the whole batch. Here what reads a merged value reads the one before, and is merged itself instead,
up to the reshape that undoes the merge:

    reshape(dot_general(reshape(x: TxBxK -> TBxK), w) -> TxBxM)  ->  dot_general(x, w): TxBxM
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from pjrt_bridge.stablehlo import bindings, modules

_RESHAPE, _JOIN = "stablehlo.reshape", "stablehlo.concatenate"
_STATED = ("mhlo.sharding", "sdy.sharding")
"""Attributes that say how the results of an operation are divided."""

MergedSizes = list[list[int]]
"""For each dimension the sizes of those that were merged into it, in their order."""


class _Merged(NamedTuple):
    """What a merged value was before: the value, and its dimensions by those of the merged one."""

    value: Any
    sizes: MergedSizes


def unmerge(module: Any) -> None:
    """Move merges of dimensions behind the operations that read them, in place.

    Elements stay where they are in memory, and every operation computes the same numbers.
    """
    for operation in modules.operations(module):
        rule = _RULES.get(operation.name)
        if rule is None or any(key in operation.attributes for key in _STATED):
            continue
        if operation.name != _RESHAPE and not any(map(_merge_of, operation.operands)):
            continue
        found = rule(operation)
        if found is None:
            continue
        (result,) = operation.results
        value = found.value
        if list(value.type.shape) != list(result.type.shape):
            value = _made(operation, _RESHAPE, [value], result.type.shape)
        result.replace_all_uses_with(value)
        sources = {owner for owner in map(_owner, operation.operands) if owner is not None}
        operation.erase()
        for source in sources:
            if source.name in (_RESHAPE, _JOIN) and not list(source.results[0].uses):
                source.erase()


def merged_sizes(before: Sequence[int], after: Sequence[int]) -> MergedSizes | None:
    """The sizes that a reshape merges; None where it does anything else.

    Args:
        before: shape of the operand.
        after: shape of the result.
    """
    left, found = list(before), []
    for size in after:
        group: list[int] = []
        while left and (not group or math.prod(group) < size):
            group.append(left.pop(0))
        if not group or math.prod(group) != size:
            return None
        found.append(group)
    if not found or math.prod(left) != 1:
        return None
    found[-1] += left
    return found


def _merge_of(value: Any) -> _Merged | None:
    owner = _owner(value)
    if owner is None or owner.name != _RESHAPE:
        return None
    sizes = merged_sizes(owner.operands[0].type.shape, value.type.shape)
    if sizes is None or all(sum(size > 1 for size in group) < 2 for group in sizes):
        return None
    return _Merged(owner.operands[0], sizes)


def _with_sizes(operation: Any, merge: _Merged, sizes: MergedSizes) -> Any:
    """The value with some of its dimensions merged, in front of an operation that reads it."""
    shape = _flat(sizes)
    if list(merge.value.type.shape) == shape:
        return merge.value
    return _made(operation, _RESHAPE, [merge.value], shape)


# -- rules: what an operation gives for its operands before they were merged -----------------------


def _reshape(operation: Any) -> _Merged | None:
    """A reshape of the value before the merge; sizes of 1 that it adds stand between its groups."""
    merge = _merge_of(operation.operands[0])
    if merge is None:
        return _stack(operation)
    wanted = list(operation.results[0].type.shape)
    sizes = [[size] for size in wanted]
    if list(merge.value.type.shape) != wanted:
        sizes = _with_ones(merge.sizes, wanted) or sizes
    return _Merged(_with_sizes(operation, merge, sizes), sizes)


def _stack(operation: Any) -> _Merged | None:
    """Arrays that are joined along a dimension, which is then divided into as many: a stack."""
    join, wanted = _owner(operation.operands[0]), list(operation.results[0].type.shape)
    if getattr(join, "name", "") != _JOIN or len(list(join.results[0].uses)) > 1:
        return None
    dim, count = int(join.attributes["dimension"]), len(join.operands)
    shape = list(join.operands[0].type.shape)
    one = [*shape[:dim], 1, *shape[dim:]]
    if wanted != [*shape[:dim], count, *shape[dim:]] or any(
        list(item.type.shape) != shape for item in join.operands
    ):
        return None
    parts = [_made(operation, _RESHAPE, [item], one) for item in join.operands]
    attributes = {"dimension": join.attributes["dimension"]}
    made = _made(operation, join.name, parts, wanted, attributes)
    return _Merged(made, [[size] for size in wanted])


def _with_ones(groups: MergedSizes, wanted: Sequence[int]) -> MergedSizes | None:
    """The groups with those of 1 that a shape has between them; None for another shape."""
    left, found = list(groups), []
    for size in wanted:
        if left and math.prod(left[0]) == size:
            found.append(left.pop(0))
        elif size == 1:
            found.append([1])
        else:
            return None
    return None if left else found


def _transpose(operation: Any) -> _Merged:
    merge = _merge_of(operation.operands[0])
    assert merge is not None
    dims = _numbered(merge.sizes)
    order = _integers(operation, "permutation")
    sizes = [merge.sizes[dim] for dim in order]
    attributes = {"permutation": _array(operation, _flat(dims[dim] for dim in order))}
    made = _made(operation, operation.name, [merge.value], _flat(sizes), attributes)
    return _Merged(made, sizes)


def _elementwise(operation: Any) -> _Merged | None:
    """Dimensions stay merged that not all operands have merged alike."""
    sizes = next(filter(None, map(_merge_of, operation.operands))).sizes
    for value in operation.operands:
        merge, owner = _merge_of(value), _owner(value)
        if merge is not None:
            sizes = _common(sizes, merge.sizes)
        elif value.type.shape and not _is_splat(owner):
            if owner is None or owner.name != "stablehlo.broadcast_in_dim":
                return None
            at = set(_integers(owner, "broadcast_dimensions"))
            sizes = [[math.prod(one)] if dim in at else one for dim, one in enumerate(sizes)]
    operands = [_spread(operation, value, sizes) for value in operation.operands]
    return _Merged(_made(operation, operation.name, operands, _flat(sizes), {}), sizes)


def _spread(operation: Any, value: Any, sizes: MergedSizes) -> Any:
    """An operand of an elementwise operation with dimensions of these sizes."""
    merge, owner = _merge_of(value), _owner(value)
    if merge is not None:
        return _with_sizes(operation, merge, sizes)
    if not value.type.shape:
        return value
    if _is_splat(owner):
        return _constant(operation, owner.attributes["value"], _flat(sizes))
    dims = _numbered(sizes)
    places = _flat(dims[dim] for dim in _integers(owner, "broadcast_dimensions"))
    attributes = {"broadcast_dimensions": _array(operation, places)}
    shape = _flat(sizes)
    return _made(operation, owner.name, owner.operands, shape, attributes, value.type.element_type)


def _broadcast(operation: Any) -> _Merged:
    """Dimensions that are repeated have one element, so they are not merged."""
    merge = _merge_of(operation.operands[0])
    assert merge is not None
    sizes = [[size] for size in operation.results[0].type.shape]
    at = _integers(operation, "broadcast_dimensions")
    for dim, group in zip(at, merge.sizes, strict=True):
        if math.prod(group) == math.prod(sizes[dim]):
            sizes[dim] = group
    dims = _numbered(sizes)
    attributes = {"broadcast_dimensions": _array(operation, _flat(dims[dim] for dim in at))}
    made = _made(operation, operation.name, [merge.value], _flat(sizes), attributes)
    return _Merged(made, sizes)


def _reduce(operation: Any) -> _Merged | None:
    if len(operation.operands) != 2 or (merge := _merge_of(operation.operands[0])) is None:
        return None
    reduced = _integers(operation, "dimensions")
    dims = _numbered(merge.sizes)
    kept = [one for dim, one in enumerate(merge.sizes) if dim not in reduced]
    operands = [merge.value, operation.operands[1]]
    attributes = {"dimensions": _array(operation, _flat(dims[dim] for dim in sorted(reduced)))}
    made = _made(operation, operation.name, operands, _flat(kept), attributes, regions=1)
    operation.regions[0].blocks[0].append_to(made.owner.regions[0])
    return _Merged(made, kept)


def _product(operation: Any) -> _Merged:
    """`dot_general`; of batches and sums dimensions stay merged that are not so on both sides."""
    dot = bindings.load().stablehlo.DotDimensionNumbers
    numbers = dot(operation.attributes["dot_dimension_numbers"])
    batch = [numbers.lhs_batching_dimensions, numbers.rhs_batching_dimensions]
    summed = [numbers.lhs_contracting_dimensions, numbers.rhs_contracting_dimensions]
    sides = [
        _merge_of(item) or _Merged(item, [[size] for size in item.type.shape])
        for item in operation.operands
    ]
    left, right = (list(side.sizes) for side in sides)
    for one, two in zip([*batch[0], *summed[0]], [*batch[1], *summed[1]], strict=True):
        if left[one] != right[two]:
            left[one] = right[two] = [math.prod(left[one])]
    found = [left[dim] for dim in batch[0]]
    for side, sizes in enumerate((left, right)):
        taken = [*batch[side], *summed[side]]
        found += [one for dim, one in enumerate(sizes) if dim not in taken]
    at = [_numbered(left), _numbered(right)]

    def dims(side: int, chosen: Sequence[Sequence[int]]) -> list[int]:
        return _flat(at[side][dim] for dim in chosen[side])

    made = dot.get(
        lhs_batching_dimensions=dims(0, batch),
        rhs_batching_dimensions=dims(1, batch),
        lhs_contracting_dimensions=dims(0, summed),
        rhs_contracting_dimensions=dims(1, summed),
        context=operation.context,
    )
    operands = [
        _with_sizes(operation, side, sizes)
        for side, sizes in zip(sides, (left, right), strict=True)
    ]
    attributes = {"dot_dimension_numbers": made}
    return _Merged(_made(operation, operation.name, operands, _flat(found), attributes), found)


def _common(sizes: MergedSizes, others: MergedSizes) -> MergedSizes:
    """The sizes, those of a dimension merged that is not merged alike in the others."""
    return [
        one if one == other else [math.prod(one)] for one, other in zip(sizes, others, strict=True)
    ]


_ELEMENTWISE = (
    *("abs", "add", "and", "clamp", "compare", "convert", "cosine", "divide", "exponential"),
    *("exponential_minus_one", "floor", "is_finite", "log", "log_plus_one", "logistic", "maximum"),
    *("minimum", "multiply", "negate", "not", "or", "power", "remainder", "rsqrt", "select"),
    *("sign", "sine", "sqrt", "subtract", "tanh", "xor"),
)
_RULES: dict[str, Callable[[Any], _Merged | None]] = {
    **{f"stablehlo.{name}": _elementwise for name in _ELEMENTWISE},
    **{f"chlo.{name}": _elementwise for name in ("erf", "erf_inv", "square")},
    "stablehlo.broadcast_in_dim": _broadcast,
    "stablehlo.dot_general": _product,
    "stablehlo.reduce": _reduce,
    _RESHAPE: _reshape,
    "stablehlo.transpose": _transpose,
}


# -- MLIR ------------------------------------------------------------------------------------------


def _made(
    like: Any,
    name: str,
    operands: Sequence[Any],
    shape: Sequence[int],
    attributes: dict[str, Any] | None = None,
    element: Any = None,
    *,
    regions: int = 0,
) -> Any:
    """The result of a new operation in front of another one.

    Args:
        like: the other one.
        name: of the new one; if it is that of the other one, it has its attributes, too.
        operands: of the new one.
        shape: of its result.
        attributes: of the new one, instead of the other one's.
        element: its type of elements; None: the other one's.
        regions: how many it has.
    """
    ir = bindings.load().ir
    kept = {key: like.attributes[key] for key in like.attributes} if name == like.name else {}
    if element is None:
        source = like.results[0] if name == like.name else operands[0]
        element = source.type.element_type
    with like.context, like.location:
        return ir.Operation.create(
            name,
            results=[ir.RankedTensorType.get(list(shape), element)],
            operands=list(operands),
            attributes={**kept, **(attributes or {})},
            regions=regions,
            ip=ir.InsertionPoint(like),
        ).results[0]


def _constant(like: Any, elements: Any, shape: Sequence[int]) -> Any:
    ir = bindings.load().ir
    with like.context, like.location:
        kind = ir.RankedTensorType.get(list(shape), elements.type.element_type)
        value = ir.DenseElementsAttr.get_splat(kind, elements.get_splat_value())
    element = kind.element_type
    return _made(like, "stablehlo.constant", [], shape, {"value": value}, element)


def _is_splat(owner: Any) -> bool:
    return getattr(owner, "name", "") == "stablehlo.constant" and owner.attributes["value"].is_splat


def _owner(value: Any) -> Any:
    """The operation that gives a value; None for the argument of a block."""
    owner = getattr(value.owner, "operation", value.owner)
    return owner if hasattr(owner, "operands") else None


def _array(operation: Any, numbers: Sequence[int]) -> Any:
    return bindings.load().ir.DenseI64ArrayAttr.get(list(numbers), operation.context)


def _integers(operation: Any, name: str) -> list[int]:
    return [int(item) for item in operation.attributes[name]]


def _flat(groups: Iterable[Sequence[int]]) -> list[int]:
    return list(itertools.chain(*groups))


def _numbered(sizes: MergedSizes) -> list[list[int]]:
    """For each dimension the places of those that were merged into it."""
    count = itertools.count()
    return [[next(count) for _ in group] for group in sizes]
