"""Copies, pickles and files of resident tensors.

Torch copies and pickles a tensor by its storage's bytes. A resident storage gives them through the
host, and one of a file becomes resident when `map_location` says so.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch

from pjrt_bridge.errors import DeviceError
from pjrt_bridge.runtime.dispatch.value_spec import ValueSpec
from pjrt_bridge.torch_interop.named_device.naming import NAME
from pjrt_bridge.torch_interop.resident.client.current import current_index
from pjrt_bridge.torch_interop.resident.storages import transfer
from pjrt_bridge.torch_interop.resident.storages.storage import contents_at, empty, resident_tensor


def register() -> None:
    """Have torch's storages know the device."""
    usual: Any = torch.UntypedStorage.__deepcopy__

    def deep_copy(storage: Any, memo: dict[int, Any]) -> Any:
        if storage.device.type != NAME:
            return usual(storage, memo)
        done = memo.setdefault("torch", {})  # type: ignore[call-overload]
        if storage._cdata not in done:
            done[storage._cdata] = copied(storage)
        return done[storage._cdata]

    torch.UntypedStorage.__deepcopy__ = deep_copy  # type: ignore[method-assign]
    make: Any = torch.UntypedStorage.__new__

    def new(cls: Any, *args: Any, device: Any = None, **kwargs: Any) -> Any:
        if device is None or torch.device(device).type != NAME:
            return make(cls, *args, **({} if device is None else {"device": device}), **kwargs)
        # Torch's own way ends the process, because the device has no allocator in C++.
        size = args[0] if args else kwargs.get("size", 0)
        if not hasattr(size, "__index__"):
            # The bytes themselves.
            return moved(make(cls, *args, **kwargs), device)
        return empty((size,), torch.uint8, _index(device)).untyped_storage()

    torch.UntypedStorage.__new__ = new  # type: ignore[method-assign]
    for name in ("_share_fd_cpu_", "_share_filename_cpu_"):
        setattr(torch.UntypedStorage, name, _not_shared(getattr(torch.UntypedStorage, name)))
    torch.UntypedStorage.pjrt = moved  # type: ignore[attr-defined]
    torch.TypedStorage.pjrt = _moved_typed  # type: ignore[attr-defined]


def _not_shared(share: Callable[..., Any]) -> Callable[..., Any]:
    """A way in which torch sends a storage to another process, but for resident ones."""

    @wraps(share)
    def shared(storage: Any, *args: Any, **kwargs: Any) -> Any:
        if storage.device.type == NAME:
            raise DeviceError(
                f"a tensor on device {storage.device} cannot be sent to another process, which has "
                f"a client of its own: send tensor.cpu(), and call .to({NAME!r}) there"
            )
        return share(storage, *args, **kwargs)

    return shared


def _index(device: Any) -> int:
    found = None if device is None else torch.device(device).index
    return current_index() if found is None else found


def copied(storage: Any) -> torch.UntypedStorage:
    """A storage of a copy of the elements of a resident storage; buffers are never written into."""
    contents = contents_at(storage)
    assert contents is not None
    made = resident_tensor(contents.elements, ValueSpec.row_major(contents.type), contents.index)
    return made.untyped_storage()


def moved(
    storage: torch.UntypedStorage, device: Any = None, non_blocking: bool = False
) -> torch.UntypedStorage:
    """A resident storage of a host storage's bytes."""
    index = _index(device)
    flat = torch.empty((0,), dtype=torch.uint8, device="cpu").set_(storage)
    return transfer.to_device(flat, index).untyped_storage()


def _moved_typed(storage: Any, device: Any = None, non_blocking: bool = False) -> Any:
    return storage._new_wrapped_storage(moved(storage._untyped_storage, device, non_blocking))
