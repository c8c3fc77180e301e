"""Copies to the device that begin when a program reads them, as it may read them with padding.

A program that pads an array on the device is one for each size. So once graphs have padded an
array, host tensors of its element type and shape, but for the dimensions that were padded, are
copied to the device when they are read.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable

import torch

from pjrt_bridge.runtime import Buffer
from pjrt_bridge.runtime.dispatch.value_spec import ValueSpec
from pjrt_bridge.stablehlo.types import TensorType
from pjrt_bridge.torch_interop.resident.client.chosen import of_client
from pjrt_bridge.torch_interop.resident.client.refusals import need_strides
from pjrt_bridge.torch_interop.resident.storages import transfer
from pjrt_bridge.torch_interop.resident.storages.storage import Contents, resident_tensor
from pjrt_bridge.torch_interop.tensors import type_of

_SHAPES = 64
"""Shapes of one rank that are kept; of more, tensors of any shape wait."""

_expected: dict[tuple[torch.dtype, int], set[tuple[int | None, ...]]] = {}
"""By element type and rank the shapes of arrays that were padded on the device; None for sizes that
change."""


def forget_expected() -> None:
    """Copy all tensors to the device at once, until graphs pad arrays again."""
    _expected.clear()


of_client(forget_expected)


def expect_padding(contents: Contents, changing: Collection[int]) -> None:
    """Note an array that was padded on the device: others like it will be.

    Args:
        contents: of its storage.
        changing: its dimensions that were padded.
    """
    shape = tuple(None if at in changing else size for at, size in enumerate(contents.shape))
    known = _expected.setdefault((contents.dtype, len(shape)), set())
    known.add(shape if len(known) < _SHAPES else (None,) * len(shape))


def _is_expected(tensor: torch.Tensor) -> bool:
    return any(
        all(size is None or size == found for size, found in zip(shape, tensor.shape, strict=True))
        for shape in _expected.get((tensor.dtype, tensor.dim()), ())
    )


class HostElements:
    """The elements of a storage, which are in host memory until they are read.

    Args:
        array: a row-major tensor, which nobody writes into.
        index: of the device.
    """

    __slots__ = ("_array", "_buffer", "_index", "_kept", "type")

    def __init__(self, array: torch.Tensor, index: int) -> None:
        self.type: TensorType = type_of(array)
        self._array = array
        self._index = index
        self._buffer: Buffer | None = None
        self._kept: dict[Hashable, Buffer] = {}

    def compute(self) -> Buffer:
        """Their array on the device."""
        if self._buffer is None:
            self._buffer = transfer.put_array(self._array, self._index)
        return self._buffer

    def padded(
        self,
        tensor: torch.Tensor,
        wanted: ValueSpec,
        grow: Callable[[torch.Tensor], torch.Tensor],
        *,
        keep: bool,
    ) -> Buffer:
        """The elements of a tensor with padding, on the device.

        Args:
            tensor: it has this storage, and its element type.
            wanted: how they are to lie.
            grow: adds the padding to a host tensor.
            keep: further calls get the same array.
        """
        where = (tensor.shape, tensor.stride(), tensor.storage_offset())
        found = self._kept.get((*where, wanted))
        if found is None:
            made = grow(self._array.as_strided(*where))
            if wanted.order is not None:
                made = made.permute(wanted.order)
            found = transfer.put_array(made.contiguous(), self._index)
            if keep:
                self._kept[*where, wanted] = found
        return found


def to_device(tensor: torch.Tensor, index: int) -> torch.Tensor:
    """A resident tensor of a copy of a host tensor's elements, with its strides if it is dense.

    Raises:
        DeviceError: it is sparse, or of another layout.
    """
    if not _is_expected(tensor):
        return transfer.to_device(tensor, index)
    need_strides(tensor)
    spec = ValueSpec.argument(type_of(tensor), tensor.stride())
    return resident_tensor(HostElements(transfer.array_of(tensor, spec), index), spec, index)
