"""Where operators that only move elements put the rows of a padded dimension."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from pjrt_bridge.torch_interop import compat
from pjrt_bridge.torch_interop.passes.padding.rows import ALONE, Block, Dims, MixesRows, Use


def dropped(dims: Dims, gone: Iterable[int]) -> Dims:
    """Dimensions renumbered after some are dropped."""
    gone = set(gone)
    return {
        dim - sum(other < dim for other in gone): block
        for dim, block in dims.items()
        if dim not in gone
    }


def same(use: Use) -> Dims:
    """Every dimension stays where it is."""
    return use.dims("self")


def permuted(use: Use) -> Dims:
    """The dimensions in another order."""
    found, rank = use.dims("self"), len(use.shape("self"))
    order = [dim % rank for dim in use["dims"]]
    return {at: found[dim] for at, dim in enumerate(order) if dim in found}


def transposed(use: Use) -> Dims:
    """Two dimensions swapped."""
    rank = max(len(use.shape("self")), 1)
    one, other = use["dim0"] % rank, use["dim1"] % rank
    swapped = {one: other, other: one}
    return {swapped.get(dim, dim): block for dim, block in use.dims("self").items()}


def reversed_dims(use: Use) -> Dims:
    """The dimensions in reverse."""
    last = len(use.shape("self")) - 1
    return {last - dim: block for dim, block in use.dims("self").items()}


def unsqueezed(use: Use) -> Dims:
    """With one more dimension."""
    return _moved_up(use.dims("self"), use["dim"] % (len(use.shape("self")) + 1))


def _moved_up(dims: Dims, at: int) -> Dims:
    return {dim + (dim >= at): block for dim, block in dims.items()}


def squeezed(use: Use) -> Dims:
    """Without dimensions whose size is 1."""
    found, shape = use.dims("self"), use.shape("self")
    named = use.named("dim", len(shape))
    if found.keys() & named:
        raise MixesRows("it drops the dimension where its size is 1")
    return dropped(found, [dim for dim in named if shape[dim] == 1])


def selected(use: Use) -> Dims:
    """One row of another dimension."""
    found = use.dims("self")
    named = use.named("dim", len(use.shape("self")))
    if found.keys() & named:
        raise MixesRows("it takes rows out of the dimension")
    return dropped(found, named)


def sliced(use: Use) -> Dims:
    """Some rows of another dimension, or all."""
    found, end = use.dims("self"), use.number(use["end"])
    inside = found.keys() & use.named("dim", len(use.shape("self")))
    if end == use.symbol and not inside:
        raise MixesRows("it uses the size as a number")
    alone = all(found[dim] == ALONE for dim in inside)
    whole = end in (None, torch.iinfo(torch.int64).max) or (end == use.symbol and alone)
    if inside and not (whole and use["start"] in (None, 0) and use["step"] in (None, 1)):
        raise MixesRows("it takes rows out of the dimension")
    return found


def _alike(use: Use) -> Dims:
    """Where several tensors have the rows, which must be the same dimensions in all."""
    first, *others = use["tensors"]
    if any(
        use.dims(other) != use.dims(first) or len(use.shape(other)) != len(use.shape(first))
        for other in others
    ):
        raise MixesRows("its arguments have the size in different dimensions")
    return use.dims(first)


def stacked(use: Use) -> Dims:
    """Several in a new dimension."""
    rank = len(use.shape(use["tensors"][0]))
    return _moved_up(_alike(use), use["dim"] % (rank + 1))


def concatenated(use: Use) -> Dims:
    """Several along another dimension."""
    rank = len(use.shape(use["tensors"][0]))
    if any(use.dims(item).keys() & use.named("dim", rank) for item in use["tensors"]):
        raise MixesRows("it works along the dimension")
    return _alike(use)


def expanded(use: Use) -> Dims:
    """Repeated without a copy."""
    own, result = use["self"], use.result
    found = {**use.plain(result), **use.aligned([own], result.dim())}
    use.meets(own, found, result.dim())
    return found


def repeated(use: Use) -> Dims:
    """Repeated in other dimensions, or a single row as often as there are rows."""
    result, shape = use.result, use.shape("self")
    repeats = list(map(use.number, use["repeats"]))
    new = len(repeats) - len(shape)
    own = {dim + new: block for dim, block in use.dims("self").items()}
    if any(repeats[dim] != 1 for dim in own):
        raise MixesRows("it repeats the dimension")
    return {**use.plain(result), **own}


def bordered(use: Use) -> Dims:
    """Padded in other dimensions."""
    found, pad = use.dims("self"), use["pad"]
    last = len(use.shape("self")) - 1
    if any(number != 0 for dim in found for number in pad[2 * (last - dim) :][:2]):
        raise MixesRows("it adds rows to the dimension")
    return found


def viewed(use: Use) -> Dims:
    """In row-major order, merged with what is before and after, or divided from it again."""
    places, size = [], 1
    for dim, own in enumerate(use.shape("self")):
        if dim in use.dims("self"):
            places.append(size * use.dims("self")[dim][0])
        size = size * own
    found: dict[int, Block] = {}
    before: Any = 1
    for dim, own in enumerate(use.shape(use.result)):
        if use.symbol in getattr(own, "free_symbols", ()):
            outer = compat.quotient(places.pop(0), before) if places else None
            inner = None if outer is None else compat.quotient(own, outer * use.symbol)
            if inner is None:
                raise MixesRows("it divides the dimension, or merges it with itself")
            found[dim] = (outer, inner)
        before = before * own
    if places:
        raise MixesRows("it divides the dimension, or merges it with itself")
    return found
