"""Who else holds an array: a program may take over the memory of one that nobody else will read.

Two storages of a framework hold the same array after a copy that copied nothing, and a device may
share a part with another array. The interpreter's counts of references tell.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from pjrt_bridge.runtime.buffers.buffer import Buffer
from pjrt_bridge.runtime.dispatch import outputs
from pjrt_bridge.runtime.objects.sharded import ShardedBuffer


def held_once(arrays: Sequence[object], at: int) -> bool:
    """Whether an array has one holder at most, beside the sequence itself.

    Args:
        arrays: the caller has no other reference to what is in it.
        at: position of a buffer, or of an array over a mesh.
    """
    return _references(arrays, at) <= _ONE_HOLDER and _owns_memory(arrays[at])


def _owns_memory(array: object) -> bool:
    """Whether nobody has the memory of an array under another name."""
    if isinstance(array, ShardedBuffer):
        parts = list(array.shards)
        return all(held_once(parts, at) for at in range(len(parts)))
    assert isinstance(array, Buffer)
    below = [outputs.output_of(array)]
    return below[0] is None or _references(below, 0) <= _ONE_HOLDER


def _references(objects: Sequence[object], at: int) -> int:
    return sys.getrefcount(objects[at])


class _Probe:
    """An object whose references are known."""


_holder = (_Probe(),)
_ONE_HOLDER = _references([_holder[0]], 0)
