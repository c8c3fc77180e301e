"""Operators that address the memory of a padded tensor by strides: `as_strided` and what writes so.

A tensor whose elements are all of a piece of memory, in an order that is known, has each address of
that piece as a position among its elements. The addresses are calculated with the sizes of the
call, and the elements are then taken from where they are among padding.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from pjrt_bridge.torch_interop import compat
from pjrt_bridge.torch_interop.addressing import is_copy_around_argument
from pjrt_bridge.torch_interop.passes.padding.emission import Emission
from pjrt_bridge.torch_interop.passes.padding.extents import (
    Extent,
    MixesRows,
    PaddedDims,
    Size,
    extent_of,
    product,
)
from pjrt_bridge.torch_interop.passes.padding.rows import Use

ADDRESSES = "it addresses the memory of a tensor"


def reads_own_elements(node: fx.Node) -> bool:
    """Whether what a node addresses are elements of its first argument, or calls are asked.

    Otherwise it may be memory around the argument.
    """
    given = compat.bound_arguments(node)
    source = node.all_input_nodes[0]
    promise = compat.promise(source)
    if _memory_order(promise, []) is None or is_copy_around_argument(source):
        return False
    place = _Addresses.of(given, promise)
    beyond = place.reach - math.prod(map(compat.expression, promise.shape))
    return not compat.is_number(beyond) or bool(beyond < 0)


def taken(use: Use) -> PaddedDims:
    """The elements at some addresses."""
    memory = _AddressedTensor.of(use)
    place = _Addresses.of(use.arguments, compat.promise(use["self"]))
    _ask_calls(use, memory, place)
    rank = len(place.sizes)
    ends = next(count for count in range(rank, -1, -1) if memory.keeps(use, place, count))
    whole = place.sizes[rank - ends :]
    unit = product(whole)
    outer = place.without(ends, unit)
    among = compat.quotient(product(memory.shape), unit)
    extent = memory.extent(ends)

    def emit(e: Emission) -> Any:
        index = e.within(outer.values(e), among)
        index = e.place_among_padding(extent, index)
        rows = [e.size(product(extent)), *map(e.size, whole)]
        return e.call("aten.index.Tensor", memory.flat(e, e[use["self"]], rows), [index])

    use.emit = emit
    return use.promised(use.result)


def written(use: Use) -> PaddedDims:
    """A tensor with other elements at some addresses; where several go to one, any is taken."""
    memory = _AddressedTensor.of(use)
    place = _Addresses.of(use.arguments, compat.promise(use["self"]))
    _ask_calls(use, memory, place)
    source, extent = use["src"], memory.extent(0)
    use.same(
        {dim: extent_of(size) for dim, size in enumerate(place.sizes) if use.is_padded(size)},
        use.dims(source),
    )

    def emit(e: Emission) -> Any:
        count = e.size(product(extent))
        index = e.within(place.values(e), product(memory.shape))
        index = e.place_among_padding(extent, index)
        dims = use.dims(source)
        if dims:
            # What is in the padding goes behind the end.
            end = e.call("aten.full.default", [], count, dtype=torch.int64)
            index = e.call("aten.where.self", e.mask(dims, len(place.sizes)), index, end)
        made = e.longer(memory.flat(e, e[use["self"]], [count]), 0, 1, 1)
        made = e.call("aten.index_put.default", made, [index], e[source])
        made = e.call("aten.slice.Tensor", made, 0, 0, count)
        return memory.shaped(e, made)

    use.emit = emit
    return use.dims("self")


def _ask_calls(use: Use, memory: _AddressedTensor, place: _Addresses) -> None:
    """Have calls padded only if they address elements of the tensor."""
    use.needs_elements(product(memory.shape) - place.reach)
    use.needs_elements(place.offset + 1)


@dataclass(frozen=True)
class _Addresses:
    """A view of memory.

    Attributes:
        sizes: of the view.
        strides: of the view.
        offset: of its first element, from the first element of the tensor.
    """

    sizes: list[Size]
    strides: list[Size]
    offset: Size

    @staticmethod
    def of(given: Any, promise: torch.Tensor) -> _Addresses:
        """The view that arguments of an operator name."""
        sizes, strides, offset = (
            fx.map_arg(given[name], compat.promise) for name in ("size", "stride", "storage_offset")
        )
        first = compat.expression(promise.storage_offset())
        return _Addresses(
            [*map(compat.expression, sizes)],
            [*map(compat.expression, strides)],
            0 if offset is None else compat.expression(offset) - first,
        )

    @property
    def reach(self) -> Size:
        """The largest address."""
        steps = zip(self.sizes, self.strides, strict=True)
        return self.offset + sum((size - 1) * step for size, step in steps)

    def without(self, ends: int, unit: Size) -> _Addresses:
        """The view in units of its last dimensions."""
        count = len(self.sizes) - ends
        strides = [compat.quotient(step, unit) for step in self.strides[:count]]
        return _Addresses(self.sizes[:count], strides, compat.quotient(self.offset, unit))

    def values(self, e: Emission) -> fx.Node:
        """The address of each element, by the strides of the call."""
        found = e.count(self.offset, torch.int64)
        for dim, (size, step) in enumerate(zip(self.sizes, self.strides, strict=True)):
            one = e.along(e.counted(0, size, step), dim, len(self.sizes))
            found = e.call("aten.add.Tensor", found, one)
        return found


@dataclass(frozen=True)
class _AddressedTensor:
    """A tensor in the order of its memory.

    Attributes:
        order: its dimensions, from the slowest to the fastest varying.
        shape: their sizes.
        extents: their factors.
    """

    order: list[int]
    shape: list[Size]
    extents: list[Extent]

    @staticmethod
    def of(use: Use) -> _AddressedTensor:
        """That of `self`.

        Raises:
            MixesRows: it is not known to be dense.
        """
        order = _memory_order(compat.promise(use["self"]), use.equal)
        if order is None:
            raise MixesRows(ADDRESSES)
        shape, dims = use.shape("self"), use.dims("self")
        extents = [dims.get(dim, extent_of(shape[dim])) for dim in order]
        return _AddressedTensor(order, [shape[dim] for dim in order], extents)

    def extent(self, ends: int) -> Extent:
        """The factors of all dimensions but the last."""
        factors = (one for extent in self.extents[: len(self.extents) - ends] for one in extent)
        return tuple(one for one in factors if one != 1) or (1,)

    def keeps(self, use: Use, place: _Addresses, ends: int) -> bool:
        """Whether a view has the last dimensions as they are in memory."""
        unit: Size = 1
        for at in range(1, ends + 1):
            if (
                at > len(self.shape)
                or use.is_padded(self.shape[-at])
                or not compat.is_same_size(self.shape[-at], place.sizes[-at])
                or not compat.is_same_size(place.strides[-at], unit)
            ):
                return False
            unit = unit * self.shape[-at]
        others = (*place.strides[: len(place.strides) - ends], place.offset)
        return unit != 0 and all(compat.quotient(one, unit) is not None for one in others)

    def flat(self, e: Emission, made: fx.Node, sizes: Sequence[Any]) -> fx.Node:
        """A padded tensor in the order of memory, with other sizes."""
        if self.order != sorted(self.order):
            made = e.call("aten.permute.default", made, self.order)
        return e.call("aten.reshape.default", made, list(sizes))

    def shaped(self, e: Emission, made: fx.Node) -> fx.Node:
        """The tensor of what `flat` gave."""
        made = e.call(
            "aten.reshape.default", made, [e.size(product(extent)) for extent in self.extents]
        )
        if self.order != sorted(self.order):
            back = sorted(range(len(self.order)), key=self.order.__getitem__)
            made = e.call("aten.permute.default", made, back)
        return made


def _memory_order(promise: torch.Tensor, equal: list[tuple[Size, Size]]) -> list[int] | None:
    """The dimensions of a tensor from the slowest to the fastest varying; None if it has gaps.

    Args:
        promise: the tensor.
        equal: gets pairs of sizes that are equal in calls in which it has none: a view of `s0`
            elements as `s0 // 8` times 8 has the strides of what it views.
    """
    shape = [*map(compat.expression, promise.shape)]
    strides = [*map(compat.expression, promise.stride())]
    near = [compat.hint(step) for step in promise.stride()]
    sizes = [compat.hint(size) for size in promise.shape]
    if None in near or None in sizes:
        return None
    order = sorted(range(len(shape)), key=lambda dim: (-near[dim], dim))
    expected: Size = 1
    count = 1
    for dim in reversed(order):
        if shape[dim] == 1:
            continue
        if near[dim] != count:
            return None
        if not compat.is_same_size(strides[dim], expected):
            equal.append((strides[dim], expected))
        expected, count = expected * shape[dim], count * sizes[dim]
    return order
