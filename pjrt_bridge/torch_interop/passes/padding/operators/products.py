"""Products, convolutions and attention with padded dimensions."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Any

from pjrt_bridge.torch_interop import compat
from pjrt_bridge.torch_interop.passes.padding.emission import Emission
from pjrt_bridge.torch_interop.passes.padding.extents import (
    Extent,
    MixesRows,
    PaddedDims,
    Size,
    extent_of,
    has_prefix,
    product,
)
from pjrt_bridge.torch_interop.passes.padding.operators.moves import dropped, shifted
from pjrt_bridge.torch_interop.passes.padding.rows import Use


def multiplied(left: str, right: str, bias: str | None = None) -> Callable[[Use], PaddedDims]:
    """A product of matrices, or of a matrix and a vector, alone or in a batch."""

    def dims(use: Use) -> PaddedDims:
        rows, columns = use.dims(left), use.dims(right)
        last, other = use.rank(left) - 1, use.rank(right) - 1
        inner = max(other - 1, 0)
        if last in rows or inner in columns:
            if last not in rows or inner not in columns:
                raise MixesRows("it combines the dimension with one of another size")
            use.unified(rows[last], columns[inner])
            # Infinities and NaN in the padding of one would meet the zeros of the other.
            use.fill(left, 0, [last])
            use.fill(right, 0, [inner])
        if last == 2:
            _same_batch(use, rows, columns)
        found = {dim: extent for dim, extent in rows.items() if dim != last}
        if other > 0 and other in columns:
            found[last] = columns[other]
        return added(use, bias, found)

    return dims


def multiplied_and_summed(use: Use) -> PaddedDims:
    """The sum of a batch of products of matrices."""
    found = multiplied("batch1", "batch2")(use)
    if 0 in found:
        use.fill("batch1", 0, [0])
        use.fill("batch2", 0, [0])
    return added(use, "self", dropped(found, [0]))


def _same_batch(use: Use, one: PaddedDims, other: PaddedDims) -> None:
    if (0 in one) != (0 in other):
        raise MixesRows("it combines the dimension with one of another size")
    if 0 in one:
        use.unified(one[0], other[0])


def added(use: Use, name: str | None, found: PaddedDims) -> PaddedDims:
    """Dimensions after a tensor, by name, was added to the result."""
    if name is not None and use[name] is not None:
        rank = use.results[0].dim()
        use.check_broadcast(use[name], found, rank)
        for at, extent in use.aligned([use[name]], rank).items():
            if at not in found:
                raise MixesRows("it combines the dimension with one of another size")
            use.unified(found[at], extent)
    return found


def grouped(
    rows: str, matrices: str, ends: str, *others: str
) -> Callable[[Use], PaddedDims | list[PaddedDims]]:
    """Products of groups of rows, each with a matrix of its own; no group has what is behind all.

    Args:
        rows: the argument with the rows.
        matrices: that with a matrix for each group, or with rows for other rows.
        ends: that with positions at which groups end.
        others: arguments that have rows, too: the results are gradients of rows and of matrices.
    """

    def dims(use: Use) -> PaddedDims | list[PaddedDims]:
        found, between = use.dims(rows), use.dims(matrices)
        of_rows = use.rank(matrices) == 3
        alike = [use.dims(name) for name in others] if of_rows else [shifted(between, 1)]
        at = 0 if of_rows else 1
        if found.keys() - {at} or use.dims(ends) or (of_rows and between):
            raise MixesRows("it works along the dimension")
        for other in alike:
            use.same(other, found)
        for extent in found.values():
            use.needs_prefix(extent)
        if others:
            return [found, {}]
        return found if of_rows else {}

    return dims


def distances(use: Use) -> PaddedDims:
    """Distances of each row of one matrix from each of another, alone or in a batch."""
    one, other, rank = use.dims("x1"), use.dims("x2"), use.results[0].dim()
    ranks = use.rank("x1"), use.rank("x2")
    if any(size - 1 in dims for dims, size in zip((one, other), ranks, strict=True)):
        raise MixesRows("it combines the dimension with one of another size")
    found: dict[int, Extent] = {}
    for dims, size, at in ((one, ranks[0], -2), (other, ranks[1], -1)):
        for dim, extent in dims.items():
            to = rank + at if dim == size - 2 else dim + rank - size
            use.unified(found.setdefault(to, extent), extent)
    for name, dims, size in (("x1", one, ranks[0]), ("x2", other, ranks[1])):
        shape = use.shape(name)
        for to in found:
            dim = to - rank + size
            if to < rank - 2 and dim >= 0 and dim not in dims and shape[dim] != 1:
                raise MixesRows("it combines the dimension with one of another size")
    return found


def distances_backward(use: Use) -> PaddedDims:
    """The gradient of the rows of one matrix: where the distance is 0, another row adds nothing."""
    found, rank = use.dims("x1"), use.rank("x1")
    between = distances(use)
    for name in ("grad", "cdist"):
        use.same(between, use.dims(name))
    if any(dim < rank - 2 and dim not in found for dim in between):
        raise MixesRows("it combines the dimension with one of another size")
    if rank - 1 in between:
        for name in ("grad", "x1", "x2", "cdist"):
            use.fill(name, 0)
    return found


def trilinear(use: Use) -> PaddedDims:
    """A sum of products of three tensors, which are repeated along some dimensions."""
    rank = use.rank("i1") + len(use["expand1"])
    found: dict[int, Extent] = {}
    widened = []
    for name, expand in (("i1", "expand1"), ("i2", "expand2"), ("i3", "expand3")):
        dims, sizes = use.dims(name), use.shape(name)
        left = [dim for dim in range(rank) if dim not in use[expand]]
        widened.append((name, dict(zip(left, sizes, strict=True)), left))
        for dim, extent in dims.items():
            use.unified(found.setdefault(left[dim], extent), extent)
    summed = found.keys() & set(use["sumdim"])
    for name, widths, left in widened:
        own = {left[dim] for dim in use.dims(name)}
        if any(dim not in own and widths.get(dim, 1) != 1 for dim in found):
            raise MixesRows("it combines the dimension with one of another size")
        # Infinities and NaN in the padding of one would meet the zeros of another.
        use.fill(name, 0, [left.index(dim) for dim in own & summed])
    return dropped(found, use["sumdim"])


# -- convolutions ----------------------------------------------------------------------------------


def convolved(use: Use) -> PaddedDims:
    """A convolution pads with zeros itself."""
    found, result = use.dims("input"), use.shape(use.result)
    made = dict(_channels(use))
    for dim, extent in found.items():
        if dim == 0:
            made[dim] = extent
        elif dim > 1:
            use.needs_prefix(extent)
            use.fill("input", 0, [dim])
            if not use.is_padded(result[dim]):
                raise MixesRows("it works along the dimension")
            made[dim] = extent_of(result[dim])
    return made


def convolved_backward(use: Use) -> list[PaddedDims]:
    """Gradients of a convolution."""
    found, made, given = use.dims("input"), _channels(use), use.dims("grad_output")
    batch = {dim: one for dim, one in found.items() if dim == 0}
    use.same({**batch, **made}, {dim: one for dim, one in given.items() if dim < 2})
    sizes = use.shape("grad_output")
    for dim in sorted(found.keys() | given.keys()):
        if dim > 1:
            for dims in (found, given):
                use.needs_prefix(dims.get(dim, ()))
            # Torch takes sizes that do not follow from each other, such as those of two arguments.
            if not compat.is_same_size(_convolved_size(use, dim), sizes[dim]):
                raise MixesRows("it combines the dimension with one of another size")
    for name in ("grad_output", "input", "weight"):
        use.fill(name, 0)
    results = found, use.dims("weight"), shifted(made, -1)
    return [
        dims if wanted else {} for dims, wanted in zip(results, use["output_mask"], strict=True)
    ]


def _convolved_size(use: Use, dim: int) -> Size:
    """The size of one dimension of what a convolution gives, of more than batch and channels."""

    def chosen(name: str) -> Any:
        values = use[name]
        return use.number(values[0 if len(values) == 1 else dim - 2])

    step, border, apart = (chosen(name) for name in ("stride", "padding", "dilation"))
    size, window = use.shape("input")[dim], apart * (use.shape("weight")[dim] - 1)
    if use["transposed"]:
        return (size - 1) * step - 2 * border + window + chosen("output_padding") + 1
    return compat.floor_quotient(size + 2 * border - window - 1, step) + 1


def _channels(use: Use) -> PaddedDims:
    """The padded channels of what a convolution gives, as dimension 1; sums over those it takes.

    Raises:
        MixesRows: channels are divided into groups that padding would divide otherwise.
    """
    given, weight = use.dims("input"), use.dims("weight")
    if any(dim > 1 for dim in weight):
        raise MixesRows("it sums over windows of the size")
    taken, left = (0, 1) if use["transposed"] else (1, 0)
    groups, shape = use.number(use["groups"]), use.shape("weight")
    if use.is_padded(groups) and 0 in weight and shape[1] == 1:
        # Each channel is a group.
        made = {1: weight[0]}
        for extent in (extent_of(groups), given.get(1, ())):
            use.unified(extent, weight[0])
    else:
        if groups != 1 and (1 in given or weight):
            raise MixesRows("it divides the channels into groups")
        if (1 in given) != (taken in weight):
            raise MixesRows("it combines the dimension with one of another size")
        if 1 in given:
            use.unified(given[1], weight[taken])
            # Infinities and NaN in the padding of one would meet the zeros of the other.
            use.fill("input", 0, [1])
            use.fill("weight", 0, [taken])
        made = {1: weight[left]} if left in weight else {}
    if use["bias"] is not None:
        use.same(shifted(use.dims("bias"), 1), made)
    return made


# -- attention -------------------------------------------------------------------------------------


def attention(use: Use) -> list[PaddedDims]:
    """Scaled dot-product attention: padded keys are masked."""
    query = _attended(use)
    return [query, {dim: extent for dim, extent in query.items() if dim < 3}]


def attention_backward(use: Use) -> list[PaddedDims]:
    """Its gradients: padded queries have no gradient, so they add nothing to those of keys."""
    query = _attended(use)
    for name in ("grad_out", "out", "logsumexp"):
        use.same(query, use.dims(name))
    if 2 in query:
        for name in ("grad_out", "query", "out", "logsumexp"):
            use.fill(name, 0, [2])
        mask = use["attn_mask"]
        if mask is not None:
            use.fill(mask, -inf, [use.rank(mask) - 2])
    return [query, use.dims("key"), use.dims("value")]


def _attended(use: Use) -> PaddedDims:
    query, keys, values = (use.dims(name) for name in ("query", "key", "value"))
    if use["dropout_p"] != 0:
        raise MixesRows("it draws random numbers")
    if any({1, 3} & dims.keys() for dims in (query, keys, values)):
        raise MixesRows("it works along the dimension")
    for other in (keys, values):
        _same_batch(use, query, other)
    if (2 in keys) != (2 in values):
        raise MixesRows("it combines the dimension with one of another size")
    added(use, "attn_mask", {**query, **({3: keys[2]} if 2 in keys else {})})
    if 2 in keys:
        use.unified(keys[2], values[2])
        use.fill("key", 0, [2])
        use.fill("value", 0, [2])
        _mask_keys(use, query, keys[2])
    return query


def _mask_keys(use: Use, query: PaddedDims, extent: Extent) -> None:
    mask = use["attn_mask"]
    if mask is not None:
        last = use.rank(mask) - 1
        if last not in use.dims(mask):
            raise MixesRows("it has one mask for all keys")
        use.fill(mask, -inf, [last])
        return
    # A query does not see later keys: those that are kept do not see padding.
    if use["is_causal"] and query.get(2) == extent and has_prefix(extent, use.symbols):
        return
    dtype = compat.promise(use["query"]).dtype

    def emit(e: Emission) -> Any:
        seen = e.along(e.kept(extent), 3, 4)
        if use["is_causal"]:
            count = use.shape("query")[2]
            rows = query.get(2, extent_of(count))
            places = e.call("aten.arange.default", e.size(product(rows)))
            at = e.along(places, 2, 4)
            earlier = e.call("aten.le.Tensor", e.along(e.positions(extent), 3, 4), at)
            seen = e.call("aten.logical_and.default", seen, earlier)
        none, never = (e.call("aten.full.default", [], value, dtype=dtype) for value in (0.0, -inf))
        made = e.call("aten.where.self", seen, none, never)
        return e.repeat(use.node, attn_mask=made, is_causal=False)

    use.emit = emit


def encoder_layer(use: Use) -> PaddedDims:
    """The fused encoder layer."""
    return _self_attended(use, ["src"])


def multi_head_attention(use: Use) -> list[PaddedDims]:
    """What `nn.MultiheadAttention` is in inference, with its weights."""
    found = _self_attended(use, ["query", "key", "value"])
    if not use["need_weights"]:
        return [found, {}]
    weights = {dim: extent for dim, extent in found.items() if dim == 0}
    if 1 in found:
        heads = 1 if use["average_attn_weights"] else 2
        weights |= {heads: found[1], heads + 1: found[1]}
    return [found, weights]


def _self_attended(use: Use, names: list[str]) -> PaddedDims:
    """Keys behind the others are masked; a mask is true where keys are."""
    found, mask = use.dims(names[0]), use["mask"]
    for name in names[1:]:
        use.same(found, use.dims(name))
    if 2 in found:
        raise MixesRows("it works along the dimension")
    if 1 not in found:
        return found
    for name in names:
        use.fill(name, 0, [1])
    if mask is not None:
        last = use.rank(mask) - 1
        if last not in use.dims(mask):
            raise MixesRows("it has one mask for all keys")
        use.fill(mask, 1, [last])
        return found

    def emit(e: Emission) -> Any:
        masked = e.call("aten.logical_not.default", e.kept(found[1]))
        sizes = [e.size(size) for size in use.shape(names[0])[:2]]
        masked = e.call("aten.expand.default", e.call("aten.unsqueeze.default", masked, 0), sizes)
        return e.repeat(use.node, mask=masked, mask_type=1)

    use.emit = emit
    return found
