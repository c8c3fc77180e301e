"""Views that move over their storage: rows in a loop, batches, positions of a cache.

A program of an operator makes the views that it is given itself, each at its own offset. Where
offsets keep changing, the views are copied first, by programs to which offsets are arguments.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from pjrt_bridge.torch_interop.device.calls import Call
from pjrt_bridge.torch_interop.device.chosen import eager_mode, of_client
from pjrt_bridge.torch_interop.device.recent import Recent
from pjrt_bridge.torch_interop.device.storage import (
    Contents,
    Geometry,
    contents_of,
    geometry_of,
    is_resident,
)

_OFFSETS = 8
"""Programs of an operator for views that differ in their offsets alone."""

_counts: Recent[list[int]] = Recent()
of_client(_counts.clear)


def moves(call: Call) -> bool:
    """Whether a call that has no program is one of many that differ in offsets of views alone."""
    key = _without_offsets(call.key)
    if key == call.key or eager_mode() == "fused":
        return False
    if any(isinstance(item, Contents) and item.is_divided for item in call.given):
        return False
    count = _counts.find(key) or _counts.add(key, [0])
    count[0] += 1
    return count[0] > _OFFSETS


def is_part(tensor: Any) -> bool:
    """Whether a tensor is a view, without repeated elements, of a part of its storage."""
    if not is_resident(tensor) or tensor.is_conj() or tensor.is_neg() or 0 in tensor.stride():
        return False
    return geometry_of(tensor, contents_of(tensor)) is not None


def _without_offsets(key: Hashable) -> Hashable:
    if isinstance(key, Geometry):
        return key._replace(offset=-1)
    return tuple(map(_without_offsets, key)) if isinstance(key, tuple) else key
