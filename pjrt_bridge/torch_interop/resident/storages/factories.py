"""Making resident tensors, and giving them another size."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from pjrt_bridge.errors import DeviceError
from pjrt_bridge.runtime import ShardedBuffer
from pjrt_bridge.runtime.core.layout import Layout
from pjrt_bridge.torch_interop import compat
from pjrt_bridge.torch_interop.compat.devices import third_party_device
from pjrt_bridge.torch_interop.named_device.naming import NAME
from pjrt_bridge.torch_interop.resident.client.chosen import existing_index
from pjrt_bridge.torch_interop.resident.client.refusals import need_unpinned
from pjrt_bridge.torch_interop.resident.storages.storage import contents_of, empty, is_resident
from pjrt_bridge.torch_interop.resident.storages.zeros import filled, zeros_over
from pjrt_bridge.torch_interop.uninitialized import fills


def _strides(
    size: Sequence[int], memory_format: torch.memory_format | None
) -> tuple[int, ...] | None:
    if memory_format in (None, torch.contiguous_format, torch.preserve_format):
        return None
    return torch.empty(tuple(size), memory_format=memory_format, device="meta").stride()


def empty_of_format(
    size: Sequence[int],
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: torch.device | None = None,
    pin_memory: bool | None = None,
    memory_format: torch.memory_format | None = None,
) -> torch.Tensor:
    """`aten.empty.memory_format`."""
    need_unpinned(pin_memory)
    dtype = dtype or torch.get_default_dtype()
    return _uninitialized(empty(size, dtype, existing_index(device), _strides(size, memory_format)))


def empty_strided(
    size: Sequence[int],
    stride: Sequence[int],
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: torch.device | None = None,
    pin_memory: bool | None = None,
) -> torch.Tensor:
    """`aten.empty_strided`."""
    need_unpinned(pin_memory)
    dtype = dtype or torch.get_default_dtype()
    return _uninitialized(empty(size, dtype, existing_index(device), stride))


def _uninitialized(tensor: torch.Tensor) -> torch.Tensor:
    """A new tensor, filled where torch's settings want that."""
    if fills():
        contents = contents_of(tensor)
        contents.replace(filled(contents.type, contents.index))
    return tensor


def empty_like(tensor: torch.Tensor, **options: Any) -> torch.Tensor:
    """`aten.empty_like`, with which `zeros_like` and its kind begin: divided as the tensor is."""
    made = third_party_device.composed(torch.ops.aten.empty_like.default, tensor, **options)
    # Where torch has no rule for a promise, it runs the kernel over zeros like the promised ones.
    promised = isinstance(tensor, compat.FakeTensor)
    if is_resident(tensor) and is_resident(made) and not promised:
        contents, new = contents_of(tensor), contents_of(made)
        if contents.is_divided and made.stride() == tensor.stride() and new.shape == contents.shape:
            array = contents.buffer
            assert isinstance(array, ShardedBuffer)
            new.replace(zeros_over(new.type, array))
    return made


def new_empty(op: Any) -> Any:
    """`aten.new_empty` and its kind: no program, and not divided before something is written."""
    return partial(third_party_device.composed, op)


_set = third_party_device.kernel_of("aten.set_.source_Storage_storage_offset")


def set_storage(tensor: torch.Tensor, storage: torch.UntypedStorage) -> torch.Tensor:
    """`aten.set_.source_Storage`: all of a storage, in one dimension."""
    count = storage.nbytes() // tensor.dtype.itemsize
    found: torch.Tensor = _set(tensor, storage, 0, (count,), (1,))
    return found


def set_tensor(tensor: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """`aten.set_.source_Tensor`: what another tensor is over."""
    found: torch.Tensor = _set(
        tensor, other.untyped_storage(), other.storage_offset(), other.shape, other.stride()
    )
    return found


def is_set_to(tensor: torch.Tensor, other: torch.Tensor) -> bool:
    """`aten.is_set_to`: whether two tensors see the same elements of one storage alike."""
    same_storage = tensor.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()
    return (
        same_storage
        and tensor.storage_offset() == other.storage_offset()
        and tensor.shape == other.shape
        and tensor.stride() == other.stride()
    )


def resize_as(tensor: torch.Tensor, size: tuple[int, ...], strides: tuple[int, ...]) -> None:
    """Give the result of an operator the sizes and strides that the operator gives it."""
    if tuple(tensor.shape) != size:
        _give_form(tensor, size, strides)


def resize(tensor: torch.Tensor, size: Sequence[int], *, memory_format: Any = None) -> torch.Tensor:
    """`aten.resize_`: other sizes, in place; elements that there were stay where they were.

    Raises:
        DeviceError: the storage has to grow, and other tensors share it.
        RuntimeError: a format that PyTorch does not take here.
    """
    if memory_format is torch.preserve_format:
        raise RuntimeError("resize_: expected a memory format with an order, found preserve_format")
    sizes = tuple(map(int, size))
    if tuple(tensor.shape) == sizes and memory_format is None:
        return tensor
    strides = _strides(sizes, memory_format) or Layout.default(len(sizes)).strides(sizes)
    _give_form(tensor, sizes, strides)
    return tensor


def _give_form(tensor: torch.Tensor, sizes: tuple[int, ...], strides: tuple[int, ...]) -> None:
    """Give a tensor other sizes and strides, over a larger storage where its own is too small."""
    needed = 1 + sum((n - 1) * step for n, step in zip(sizes, strides, strict=True))
    if 0 in sizes:
        needed = 0
    offset = int(tensor.storage_offset())
    old = tensor.untyped_storage().nbytes() // tensor.dtype.itemsize
    if not needed or needed + offset <= old:
        _set(tensor, tensor.untyped_storage(), offset, sizes, strides)
        return
    if third_party_device.is_shared(tensor):
        raise DeviceError(
            f"resize_ from {tuple(tensor.shape)} to {sizes} needs a larger storage, and other "
            f"tensors share this one: on device {NAME!r} storages do not grow; make a new tensor, "
            "or clone() this one before"
        )
    index = tensor.device.index or 0
    made = _uninitialized(empty((needed + offset,), tensor.dtype, index))
    if old and (fills() or contents_of(tensor).is_written):
        flat = tensor.as_strided((old,), (1,), 0)
        made[:old].copy_(flat)
    _set(tensor, made.untyped_storage(), offset, sizes, strides)
