"""The functions by which torch and FSDP free the memory of a storage, and ask whether it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def answer_for(name: str, resize: Callable[[Any, int], None], freed: Callable[[Any], bool]) -> None:
    """Have storages of a device resized by a function, and have no size while they are freed.

    Args:
        name: of the device in torch.
        resize: takes a storage of it and the new size in bytes.
        freed: whether the memory of a storage, of any device, was freed and not taken again.
    """
    untyped: Any = torch.UntypedStorage
    typed: Any = torch.TypedStorage
    resize_usual, size, size_of_typed = untyped.resize_, untyped.size, typed._size

    def resize_(storage: Any, nbytes: int) -> Any:
        if storage.device.type != name:
            return resize_usual(storage, nbytes)
        resize(storage, nbytes)
        return storage

    # FSDP gathers parameters anew where the size tells that they are freed.
    untyped.resize_ = resize_
    untyped.size = lambda storage: 0 if freed(storage) else size(storage)
    typed._size = lambda storage: 0 if freed(storage._untyped_storage) else size_of_typed(storage)
