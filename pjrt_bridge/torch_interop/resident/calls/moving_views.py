"""Views that move over their storage: rows in a loop, batches, positions of a cache.

A program of an operator makes the views that it is given itself, each at its own offset. Where
offsets keep changing, they are numbers of the call: the program reads, and writes, views through
`pjrt_bridge::read_at` and `write_at`. Where there is no such program, views are copied first, by
programs to which offsets are arguments.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import torch

from pjrt_bridge.torch_interop.resident.calls.calls import Call, can_move
from pjrt_bridge.torch_interop.resident.client.chosen import of_client
from pjrt_bridge.torch_interop.resident.recent import Recent
from pjrt_bridge.torch_interop.resident.storages.storage import (
    Geometry,
    contents_of,
    geometry_of,
    has_divided,
    is_resident,
)

_OFFSETS = 8
"""Programs of an operator for views that differ in their offsets alone."""

_counts: Recent[list[int]] = Recent()
of_client(_counts.clear)


def moves(call: Call) -> bool:
    """Whether a call that has no program is one of many that differ in offsets of views alone."""
    key = _without_offsets(call.key)
    if key == call.key:
        return False
    if has_divided(call.given):
        return False
    count = _counts.find(key) or _counts.add(key, [0])
    count[0] += 1
    return count[0] > _OFFSETS


def is_part(tensor: Any) -> bool:
    """Whether a tensor is a view, without repeated elements, of a part of its storage."""
    if not is_resident(tensor) or not can_move(tensor):
        return False
    return geometry_of(tensor, contents_of(tensor)) is not None


def _without_offsets(key: Hashable) -> Hashable:
    if isinstance(key, Geometry):
        return key._replace(offset=-1)
    return tuple(map(_without_offsets, key)) if isinstance(key, tuple) else key


_READ, _WRITE = "pjrt_bridge::read_at", "pjrt_bridge::write_at"
_VIEW = "SymInt[] size, SymInt[] stride, SymInt offset"
torch.library.define(_READ, f"(Tensor memory, {_VIEW}) -> Tensor")
torch.library.define(_WRITE, f"(Tensor memory, Tensor part, {_VIEW}) -> Tensor")


@torch.library.impl(_READ, "cpu")
def _read_at(
    memory: torch.Tensor, size: Sequence[int], stride: Sequence[int], offset: int
) -> torch.Tensor:
    return memory.as_strided(size, stride, offset).clone()


@torch.library.impl(_WRITE, "cpu")
def _write_at(
    memory: torch.Tensor,
    part: torch.Tensor,
    size: Sequence[int],
    stride: Sequence[int],
    offset: int,
) -> torch.Tensor:
    made = memory.clone(memory_format=torch.contiguous_format)
    made.as_strided(size, stride, offset).copy_(part)
    return made


def _promise_of_read(
    memory: torch.Tensor, size: Sequence[int], stride: Sequence[int], _: int
) -> torch.Tensor:
    view = torch.empty_strided(size, stride, device="meta")
    return memory.new_empty_strided(size, torch.empty_like(view).stride())


torch.library.register_fake(_READ, _promise_of_read)
torch.library.register_fake(_WRITE, lambda memory, *_: torch.empty_like(memory))


def read_at(memory: torch.Tensor, geometry: Geometry, offset: int | torch.SymInt) -> torch.Tensor:
    """The elements of a view of a row-major array, which has the strides of the view if dense."""
    found: torch.Tensor = torch.ops.pjrt_bridge.read_at(
        memory, geometry.shape, geometry.strides, offset
    )
    return found


def write_at(
    memory: torch.Tensor, part: torch.Tensor, geometry: Geometry, offset: int | torch.SymInt
) -> None:
    """Have a view of a row-major array hold other elements."""
    form = (geometry.shape, geometry.strides)
    memory.copy_(torch.ops.pjrt_bridge.write_at(memory, part, *form, offset))
