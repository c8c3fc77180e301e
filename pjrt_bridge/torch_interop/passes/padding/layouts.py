"""Adding padding to arguments in memory, and taking it off results."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

import torch
from torch import fx

from pjrt_bridge.errors import UnsupportedDtype
from pjrt_bridge.runtime.dispatch.value_spec import has_gaps, result_strides
from pjrt_bridge.torch_interop import compat
from pjrt_bridge.torch_interop.passes.aliases.gaps import is_visible
from pjrt_bridge.torch_interop.passes.padding.extents import PaddedDims, Size, Symbol
from pjrt_bridge.torch_interop.tensors import over, result_spec

SizeValue = Callable[[Size], int]
"""The value of a size, in a call or in its padded form."""


@dataclass(frozen=True)
class SymbolicLayout:
    """How a tensor lies in memory, whatever the sizes are.

    Attributes:
        dims: those that are padded.
        slowest: dimensions from the slowest to the fastest varying.
        repeated: dimensions of stride 0.
        promised: of a result, the strides that torch promises, where they are calculated of sizes.
        visible: the user gets the result, and would see that gaps between elements were closed.
    """

    dims: PaddedDims
    slowest: tuple[int, ...]
    repeated: frozenset[int] = frozenset()
    promised: tuple[Size, ...] | None = None
    visible: bool = False

    @staticmethod
    def of(node: fx.Node, dims: PaddedDims, *, dense: bool = False) -> SymbolicLayout | None:
        """How the bridge lays out a tensor; None where it cannot.

        Args:
            node: that computes it.
            dims: those that are padded.
            dense: with every element in a place of its own.
        """
        promise = compat.promise(node)
        if promise.layout is not torch.strided:
            return None
        try:
            spec = result_spec(compat.stand_in_with_elements(promise))
        except (UnsupportedDtype, ValueError):
            return None
        slowest = tuple(range(len(spec.strides)))
        repeated = frozenset(dim for dim in slowest if spec.strides[dim] == 0)
        if repeated and dense:
            # All views that torch allows of it are possible of a row-major tensor, too.
            return SymbolicLayout(dims, slowest)
        return SymbolicLayout(dims, spec.order or slowest, repeated)

    @staticmethod
    def of_result(
        node: fx.Node, dims: PaddedDims, symbols: Container[Symbol]
    ) -> SymbolicLayout | None:
        """How a result of a graph lies in memory, with padded dimensions or without.

        Args:
            node: that computes it.
            dims: those that are padded.
            symbols: whose values in a call are known.
        """
        found = SymbolicLayout.of(node, dims)
        if found is None:
            return None
        strides = compat.promise(node).stride()
        known = all(symbol in symbols for step in strides for symbol in compat.symbols(step))
        promised = tuple(map(compat.expression, strides)) if known else None
        return replace(found, promised=promised, visible=is_visible(node))

    def shape(self, shape: Sequence[int], value: SizeValue) -> tuple[int, ...]:
        """A shape with other sizes in the padded dimensions."""
        return tuple(
            _product(map(value, self.dims[dim])) if dim in self.dims else size
            for dim, size in enumerate(shape)
        )

    def strides(self, shape: Sequence[int]) -> tuple[int, ...]:
        """The strides of a tensor of this shape without gaps."""
        strides, step = [0] * len(shape), 1
        for dim in reversed(self.slowest):
            if dim not in self.repeated:
                strides[dim] = step
                step *= max(shape[dim], 1)
        return tuple(strides)

    def promised_strides(
        self, shape: Sequence[int], own: Sequence[int], actual: SizeValue
    ) -> tuple[int, ...]:
        """The strides that a result of a call has to have.

        Args:
            shape: in the call.
            own: strides with padding; where they are the promised ones, gaps between elements stay.
            actual: sizes of the call.
        """
        if self.promised is None:
            return self.strides(shape)
        strides = tuple(map(actual, self.promised))
        if all(size < 2 or a == b for size, a, b in zip(shape, own, strides, strict=True)):
            return strides
        return _without_gaps(tuple(shape), strides, self.visible)

    @cached_property
    def is_plain(self) -> bool:
        """Whether it is row-major, and each padded dimension has its padding behind it."""
        in_order = self.slowest == tuple(range(len(self.slowest)))
        return in_order and not self.repeated and all(len(e) == 1 for e in self.dims.values())

    def parts(
        self, tensor: torch.Tensor, value: SizeValue
    ) -> tuple[torch.Tensor, list[int | None]]:
        """A tensor with each factor in a dimension of its own, and where these are not padded."""
        kept: list[Size | None] = []
        for dim in range(tensor.dim() - 1, -1, -1):
            extent = self.dims.get(dim, (None,))
            if len(extent) > 1:
                tensor = tensor.unflatten(dim, [value(item) for item in extent])  # type: ignore[no-untyped-call]
            kept[:0] = extent
        return tensor, kept

    def grow(self, tensor: torch.Tensor, actual: SizeValue, padded: SizeValue) -> torch.Tensor:
        """A copy of a tensor with zeros in the padding; the tensor itself if it has none.

        Autograd has to be off.
        """
        shape = self.shape(tensor.shape, padded)
        strides = self.strides(shape)
        if tensor.shape == shape and tensor.stride() == strides:
            return tensor
        if self.is_plain and tensor.is_contiguous():
            # One call, where the steps below are several for each of many caches.
            border = [0] * (2 * len(shape))
            for dim in self.dims:
                border[2 * (len(shape) - 1 - dim) + 1] = shape[dim] - tensor.shape[dim]
            made = torch.constant_pad_nd(tensor, border)
            if made.stride() == strides:
                return made
        made = torch.empty_strided(shape, strides, dtype=tensor.dtype, device=tensor.device)
        given, _ = self.parts(tensor, actual)
        inner, sizes = self.parts(made, padded)
        for at, size in enumerate(sizes):
            if size is not None and given.shape[at] != inner.shape[at]:
                kept = given.shape[at]
                inner.narrow(at, kept, inner.shape[at] - kept).zero_()
                inner = inner.narrow(at, 0, kept)
        inner.copy_(given)
        return made

    def cut(
        self, tensor: torch.Tensor, actual: SizeValue, padded: SizeValue
    ) -> tuple[torch.Tensor, int]:
        """A tensor without padding, in the strides that torch promises, and how much was copied.

        Autograd has to be off.
        """
        # Memory does not say that its elements are to be conjugated, or negated.
        tensor = tensor.resolve_conj().resolve_neg()
        shape, own = self.shape(tensor.shape, actual), tensor.stride()
        strides = self.promised_strides(shape, own, actual)
        if tensor.shape == shape and own == strides:
            return tensor, 0
        prefix = all(len(extent) == 1 for extent in self.dims.values())
        if prefix and all(
            size < 2 or a == b for size, a, b in zip(shape, own, strides, strict=True)
        ):
            storage, offset = tensor.untyped_storage(), tensor.storage_offset()
            return over(storage, tensor, offset, shape, strides), 0
        if self.is_plain:
            part = tensor
            for dim in self.dims:
                part = part.narrow(dim, 0, shape[dim])
            made = part.clone(memory_format=torch.contiguous_format)
            if made.stride() == strides:
                return made, made.nbytes
        part, sizes = self.parts(tensor, padded)
        for at, size in enumerate(sizes):
            if size is not None:
                part = part.narrow(at, 0, actual(size))
        once = tuple(
            min(size, 1) if dim in self.repeated else size for dim, size in enumerate(shape)
        )
        for dim in self.repeated:
            part = part.narrow(_part(self.dims, dim), 0, 1) if shape[dim] else part
        made = torch.empty_strided(once, strides, dtype=tensor.dtype, device=tensor.device)
        target, _ = self.parts(made, actual)
        target.copy_(part)
        return over(made.untyped_storage(), made, 0, shape, strides), made.nbytes


@lru_cache(1024)
def _without_gaps(
    shape: tuple[int, ...], strides: tuple[int, ...], visible: bool
) -> tuple[int, ...]:
    """Strides that a result may have: with gaps only where the user sees them."""
    if visible and has_gaps(shape, strides):
        return strides
    return result_strides(shape, strides)


def _part(dims: PaddedDims, dim: int) -> int:
    """Where a dimension is after those before it were divided into their factors."""
    return sum(len(dims.get(at, (None,))) for at in range(dim))


def _product(numbers: Any) -> int:
    made = 1
    for number in numbers:
        made *= number
    return made
