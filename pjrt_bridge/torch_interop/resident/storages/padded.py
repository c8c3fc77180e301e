"""Resident tensors with padding: what padded graphs take and give.

A result of a padded graph stays as it is until something else than a padded graph reads it, and a
graph that is padded to the same sizes takes it as it is. So what a forward graph saves for its
backward graph is neither cut nor padded, and what is in the padding is not known. A tensor that is
copied to the device is padded in host memory (`uploads.py`), others by a small program.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import torch

from pjrt_bridge import dtypes
from pjrt_bridge.runtime import Buffer, Client, CompileOptions, Executable, ShardedBuffer
from pjrt_bridge.runtime.dispatch.value_spec import ValueSpec
from pjrt_bridge.runtime.objects.mesh_program import AnyBuffer, whole
from pjrt_bridge.stablehlo import Builder
from pjrt_bridge.stablehlo.types import TensorType
from pjrt_bridge.torch_interop.named_device.naming import NAME
from pjrt_bridge.torch_interop.passes.lift_scalars import tensor_of
from pjrt_bridge.torch_interop.passes.padding.extents import PaddedDims, is_symbol
from pjrt_bridge.torch_interop.passes.padding.layouts import SizeValue, SymbolicLayout
from pjrt_bridge.torch_interop.passes.padding.memory import PaddingMemory
from pjrt_bridge.torch_interop.resident.client.chosen import chosen, of_client
from pjrt_bridge.torch_interop.resident.storages import transfer
from pjrt_bridge.torch_interop.resident.storages.storage import (
    contents_of,
    is_divided,
    is_resident,
    resident_tensor,
)
from pjrt_bridge.torch_interop.resident.storages.uploads import HostElements, expect_padding

_KEPT = 1024
"""Programs that are kept, and numbers."""


@dataclass(frozen=True)
class _PartPlaces:
    """Where the elements of an array are in one with padding.

    Attributes:
        kept: sizes of the array, each factor of a padded dimension by itself, in the order in which
            it lies in memory.
        made: those of the array with padding, which is behind each of them.
    """

    kept: tuple[int, ...]
    made: tuple[int, ...]

    @staticmethod
    def of(
        layout: SymbolicLayout,
        spec: ValueSpec,
        shape: Sequence[int],
        actual: SizeValue,
        padded: SizeValue,
    ) -> _PartPlaces:
        """The parts of an array.

        Args:
            layout: of it.
            spec: how it lies with padding.
            shape: of the array without.
            actual: sizes of the call.
            padded: sizes of its padded form.
        """
        kept: list[int] = []
        made: list[int] = []
        for dim in range(spec.type.rank) if spec.order is None else spec.order:
            once = spec.once.shape[dim]
            # What is repeated is there once.
            if dim in layout.dims and once == spec.type.shape[dim]:
                kept += map(actual, layout.dims[dim])
                made += map(padded, layout.dims[dim])
            else:
                kept.append(shape[dim])
                made.append(once)
        return _PartPlaces(tuple(kept), tuple(made))


def _order(spec: ValueSpec, shape: Sequence[int]) -> list[int]:
    """Dimensions from the slowest to the fastest varying, of those with more than one element."""
    return [dim for dim in spec.order or range(len(shape)) if shape[dim] > 1]


class PaddedElements:
    """The elements of a storage, which are in an array with padding.

    Args:
        spec: how they lie without padding.
        padded: the array with it, as a tensor.
        parts: where its elements are in that.
        dims: the dimensions that are padded, of the graph that gave or took the array.
        exact: the array without padding, where it is there.
    """

    __slots__ = ("_dims", "exact", "padded", "parts", "shape", "type")

    def __init__(
        self,
        spec: ValueSpec,
        padded: torch.Tensor,
        parts: _PartPlaces,
        dims: PaddedDims,
        exact: Buffer | None = None,
    ) -> None:
        self.shape = spec.type.shape
        self.type = spec.memory
        self.padded = padded
        self.parts = parts
        self._dims = dims
        self.exact = exact

    def padded_size(self, dim: int) -> int | None:
        """The size of a dimension with padding; None for one that no graph was padded to.

        A size that a graph computes of those that it was padded to may grow from call to call, as
        that of a cache does: graphs that were padded to it would be compiled in each call.
        """
        if any(not is_symbol(size) for size in self._dims.get(dim, ())):
            return None
        return self.padded.shape[dim]

    def compute(self) -> Buffer:
        """Their array without padding."""
        if self.exact is None:
            contents = contents_of(self.padded)
            parts = self.parts
            self.exact = _resized(
                contents.index, contents.buffer, parts.made, parts.kept, self.type
            )
        return self.exact


class ResidentMemory(PaddingMemory):
    """Padding of graphs over resident tensors, beside which tensors of the host may come.

    Args:
        index: of the device.
    """

    fill = None

    def __init__(self, index: int) -> None:
        self._index = index
        self.device = torch.device(NAME, index)

    def takes(self, arguments: Sequence[Any]) -> bool:
        """Whether arguments can be padded: not where they are divided over a mesh."""
        return not any(map(is_divided, arguments))

    def padded_size(self, argument: torch.Tensor, dim: int) -> int | None:
        """See `PaddingMemory`."""
        held = contents_of(argument).held if is_resident(argument) else None
        if not isinstance(held, PaddedElements) or argument.shape != held.shape:
            return None
        return held.padded_size(dim)

    def grow(
        self,
        layout: SymbolicLayout,
        tensor: torch.Tensor,
        actual: SizeValue,
        padded: SizeValue,
        *,
        written: bool,
    ) -> tuple[torch.Tensor, int]:
        """See `PaddingMemory`."""
        if not is_resident(tensor):
            return super().grow(layout, tensor, actual, padded, written=written)
        tensor = tensor.detach().resolve_conj().resolve_neg()
        # Programs take all elements of an argument.
        layout = SymbolicLayout(layout.dims, layout.slowest)
        shape = layout.shape(tensor.shape, padded)
        if tensor.shape == shape and tensor.stride() == layout.strides(shape):
            return tensor, 0
        dtype = dtypes.from_torch(tensor.dtype)
        wanted = ValueSpec.argument(TensorType(shape, dtype), layout.strides(shape))
        contents = contents_of(tensor)
        held = contents.held
        if isinstance(held, HostElements) and contents.dtype is tensor.dtype:
            grow = partial(layout.grow, actual=actual, padded=padded)
            buffer = held.padded(tensor, wanted, grow, keep=not written)
            return resident_tensor(buffer, wanted, self._index), 0
        lying = ValueSpec.argument(transfer.type_of(tensor), layout.strides(tensor.shape))
        parts = _PartPlaces.of(layout, wanted, tensor.shape, actual, padded)
        is_whole = transfer.place_of(tensor, contents, lying) is None
        if is_whole and isinstance(held, PaddedElements) and held.parts == parts:
            found = contents_of(held.padded)
            if found.type == wanted.memory:
                # A program that writes into an argument writes into this tensor.
                return resident_tensor(found.elements, wanted, self._index), 0
        exact: AnyBuffer | None
        if is_whole and isinstance(held, PaddedElements) and held.parts.kept == parts.kept:
            # By the sizes of both paddings alone, which are few.
            exact, array = held.exact, contents_of(held.padded).buffer
            buffer = _resized(self._index, array, held.parts.made, parts.made, wanted.memory)
        else:
            exact = transfer.buffer_as(tensor, lying)
            buffer = _resized(self._index, exact, parts.kept, parts.made, wanted.memory)
            # Of a view it is not known which dimensions of its storage change.
            same = tensor.dim() == len(contents.shape)
            expect_padding(contents, layout.dims if same else range(len(contents.shape)))
        if is_whole and not written and not isinstance(exact, ShardedBuffer):
            kept = resident_tensor(buffer, wanted, self._index)
            contents.replace(PaddedElements(lying, kept, parts, layout.dims, exact))
        return resident_tensor(buffer, wanted, self._index), 0

    def cut(
        self, layout: SymbolicLayout, tensor: torch.Tensor, actual: SizeValue, padded: SizeValue
    ) -> tuple[torch.Tensor, int]:
        """See `PaddingMemory`."""
        if not is_resident(tensor):
            return super().cut(layout, tensor, actual, padded)
        shape, own = layout.shape(tensor.shape, actual), tensor.stride()
        strides = layout.promised_strides(shape, own, actual)
        if tensor.shape == shape and own == strides:
            return tensor, 0
        given = ValueSpec.result(transfer.type_of(tensor), own)
        wanted = ValueSpec.result(TensorType(shape, given.type.dtype), strides)
        whole = given.strides == own and contents_of(tensor).type == given.memory
        if not whole or tensor.storage_offset() or _order(given, shape) != _order(wanted, shape):
            return layout.cut(tensor, actual, padded)
        parts = _PartPlaces.of(layout, given, wanted.once.shape, actual, padded)
        elements = PaddedElements(wanted, tensor, parts, layout.dims)
        return resident_tensor(elements, wanted, self._index), 0

    def number(self, value: Any, dtype: torch.dtype) -> torch.Tensor:
        """See `PaddingMemory`."""
        return _number(value, dtype, self._index)


@lru_cache(_KEPT)
def _number(value: Any, dtype: torch.dtype, index: int) -> torch.Tensor:
    return transfer.to_device(tensor_of(value, dtype), index)


of_client(_number.cache_clear)


def _resized(
    index: int,
    array: AnyBuffer,
    given: tuple[int, ...],
    made: tuple[int, ...],
    wanted: TensorType,
) -> Buffer:
    """A row-major array with other sizes of its parts: without their last elements, or with zeros.

    Args:
        index: of the device.
        array: what is resized.
        given: sizes of its parts, see `_PartPlaces`.
        made: those of the result.
        wanted: the result's type.
    """
    client, device = chosen(index)
    whole_array = whole(array) if isinstance(array, ShardedBuffer) else array
    program = _program(client, device.id, array.type, given, made, wanted)
    found: Buffer
    (found,) = program.execute([whole_array])
    return found


@lru_cache(_KEPT)
def _program(
    client: Client,
    device: int,
    type: TensorType,
    given: tuple[int, ...],
    made: tuple[int, ...],
    wanted: TensorType,
) -> Executable:
    builder = Builder([type], name="resize")
    kept = tuple(map(min, zip(given, made, strict=True)))
    x = builder.reshape(builder.parameters[0], given)
    if kept != given:
        x = builder.slice(x, [0] * len(kept), kept)
    if kept != made:
        border = [more - size for more, size in zip(made, kept, strict=True)]
        x = builder.pad(x, builder.full((), 0, type.dtype), [0] * len(border), border)
    program = builder.finish([builder.reshape(x, wanted.shape)])
    return client.compile(program, options=CompileOptions(device_assignment=[[device]]))


of_client(_program.cache_clear)
