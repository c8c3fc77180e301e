"""The device of a thread, which `torch.device("pjrt")` without an index stands for."""

from __future__ import annotations

import threading
from collections.abc import Callable

import torch

from pjrt_bridge.errors import PjrtBridgeError
from pjrt_bridge.torch_interop.named_device.naming import NAME

Where = int | str | torch.device | None
"""A device as callers of `torch.pjrt` name it; None and `"pjrt"` are the current one."""

_current = threading.local()
_default: list[Callable[[], int]] = []


def by_default(index: Callable[[], int]) -> None:
    """Have a function say which device is the current one of threads that chose none."""
    _default[:] = [index]


def current_index() -> int:
    """The index of the current device of this thread."""
    found: int | None = getattr(_current, "index", None)
    if found is not None:
        return found
    return _default[0]() if _default else 0


def current_in_cpp() -> int:
    """The same for C++, which takes no exception: 0 where finding the index fails."""
    try:
        return current_index()
    except PjrtBridgeError:
        return 0


def set_current_index(index: int) -> int:
    """Change it; the index before."""
    before = current_index()
    _current.index = index
    return before


def index_of(device: Where) -> int:
    """The index of a device that a caller names, whether or not the client has it.

    Raises:
        ValueError: a device of another type.
    """
    if device is None:
        return current_index()
    if isinstance(device, int):
        return device
    found = torch.device(device)
    if found.type != NAME:
        raise ValueError(f"found device {found}, expected one of type {NAME!r}")
    return current_index() if found.index is None else found.index
