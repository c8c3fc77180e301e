"""Storages of the device that are freed and taken again, as FSDP does with gathered parameters."""

from __future__ import annotations

from typing import Any

from pjrt_bridge.errors import DeviceError
from pjrt_bridge.torch_interop.compat.devices import storage_sizes
from pjrt_bridge.torch_interop.named_device.naming import NAME
from pjrt_bridge.torch_interop.resident.storages.storage import contents_at

_FREED = "_pjrt_bridge_freed"
"""The attribute of a storage that tells it; torch keeps it with the storage."""


def register() -> None:
    """Have functions of torch's storages know the device, whose storages no allocator made."""
    storage_sizes.answer_for(NAME, resize_resident, is_freed)


def is_freed(storage: Any) -> bool:
    """Whether the elements of a storage were freed, and its memory was not taken again."""
    found: bool = getattr(storage, _FREED, False)
    return found


def resize_resident(storage: Any, size: int) -> None:
    """Free the elements of a resident storage, or take memory for what is written next.

    Args:
        storage: of the device; while it is freed `size()` is 0, and `nbytes()` as before.
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
    setattr(storage, _FREED, not size)
