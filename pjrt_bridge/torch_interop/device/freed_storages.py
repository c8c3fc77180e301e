"""Storages of the device that are freed and taken again, as FSDP2 does with gathered parameters."""

from __future__ import annotations

from typing import Any

import torch

from pjrt_bridge.errors import DeviceError
from pjrt_bridge.torch_interop.device.naming import NAME
from pjrt_bridge.torch_interop.device.storage import contents_at


def register() -> None:
    """Have `resize_` of torch's storages know the device, whose storages no allocator made."""
    usual: Any = torch.UntypedStorage.resize_

    def resize(storage: Any, size: int) -> Any:
        if storage.device.type != NAME:
            return usual(storage, size)
        resize_resident(storage, size)
        return storage

    torch.UntypedStorage.resize_ = resize  # type: ignore[method-assign, assignment]


def resize_resident(storage: Any, size: int) -> None:
    """Free the elements of a resident storage, or take memory for what is written next.

    Args:
        storage: of the device; goes on to tell its size.
        size: 0 frees the elements; with the storage's size nothing is done.

    Raises:
        DeviceError: another size.
    """
    contents = contents_at(storage)
    if size not in (0, storage.nbytes()) or contents is None:
        raise DeviceError(
            f"resize_: found a storage of {storage.nbytes()} bytes on device {storage.device} and "
            f"the new size {size}, expected 0 or its size: the memory belongs to the plugin; make "
            "a tensor of the new size"
        )
    if not size:
        contents.clear(contents.type)
