"""What tensors hold, read without programs of the device that nobody else needs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree

from pjrt_bridge.torch_interop.resident.storages.storage import contents_of


def copied(tensor: torch.Tensor) -> torch.Tensor:
    """The values of a tensor on the host, in memory of their own, without conj and neg bits."""
    with torch.no_grad():
        found = tensor.detach()
        if found.device.type != "cpu":
            found = _on_host(found)
        return found.resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format).cpu()


def _on_host(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor over a copy of all memory of a resident tensor, with the same strides and bits.

    Reading it through the device takes a program for each new geometry.
    """
    with torch.device("cpu"):
        array = np.array(contents_of(tensor).buffer, copy=True, order="C")
        memory = torch.from_numpy(array.reshape(-1).view(np.uint8)).view(tensor.dtype)
        found = memory.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
        if tensor.is_conj():
            found = found.conj()
        return torch._neg_view(found) if tensor.is_neg() else found


def saved(tensor: torch.Tensor) -> Callable[[], None]:
    """Remember all memory of a tensor; what is returned restores it."""
    if tensor.device.type != "cpu":
        contents = contents_of(tensor)
        buffer = contents.buffer
        return lambda: contents.replace(buffer)
    memory = _bytes(tensor)
    before = memory.clone()

    def restore() -> None:
        memory.copy_(before)

    return restore


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    """All memory of a tensor."""
    storage = tensor.untyped_storage()
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(
        storage, 0, (storage.nbytes(),), (1,)
    )


def share(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether the storages of two tensors overlap."""
    left, right = one.untyped_storage(), other.untyped_storage()
    start, end = left.data_ptr(), left.data_ptr() + left.nbytes()
    return start < right.data_ptr() + right.nbytes() and right.data_ptr() < end


def equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors hold the same bits."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    if one.numel() == 0:
        return True
    return (
        one.contiguous()
        .view(-1)
        .view(torch.uint8)
        .equal(other.contiguous().view(-1).view(torch.uint8))
    )


def leaves(name: str, tree: Any) -> Iterator[tuple[str, Any]]:
    """What a nesting holds, by place."""
    pairs, _ = pytree.tree_flatten_with_path(tree)
    return ((f"{name}{pytree.keystr(path)}", leaf) for path, leaf in pairs)
