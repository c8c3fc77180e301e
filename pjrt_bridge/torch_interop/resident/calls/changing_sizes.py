"""Calls of one operator at ever other sizes: lengths, prefixes, numbers of hits.

A program serves one size of its arrays, and one value of each integer that is no number, such as a
dimension or a diagonal. Where these keep changing and the arrays are small, PyTorch computes a call
that comes for the first time, on copies, in less time than a compiler needs.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

import torch

from pjrt_bridge import user_warnings
from pjrt_bridge.errors import HostFallbackWarning
from pjrt_bridge.torch_interop.named_device.naming import NAME
from pjrt_bridge.torch_interop.resident.calls.calls import Call, TensorKey, tensors_in
from pjrt_bridge.torch_interop.resident.client.chosen import eager_mode
from pjrt_bridge.torch_interop.resident.recent import Recent
from pjrt_bridge.torch_interop.resident.storages.storage import has_divided

_PROGRAMS = 32
"""Programs of an operator for calls that differ in sizes and integers alone."""

_COMES_AGAIN = 4
"""Calls of one size from which on it gets a program nevertheless."""

_BYTES = 1 << 22
"""Of all arrays of a call that PyTorch computes."""


@dataclass
class _Sizes:
    """The sizes of an operator's calls.

    Attributes:
        programs: how many got a program.
        calls: by their keys, how often the others came.
    """

    programs: int = 0
    calls: Recent[list[int]] = field(default_factory=Recent)


_sizes: Recent[_Sizes] = Recent()
_warned: set[str] = set()


def forget() -> None:
    """Forget all calls, where their programs are dropped."""
    _sizes.clear()
    _warned.clear()


def changes(call: Call) -> bool:
    """Whether a call that has no program is to get none, as one of many that differ in sizes.

    The first such call warns.
    """
    seeded = torch.Tag.nondeterministic_seeded in call.op.tags
    if eager_mode() == "fused" or call.op.namespace != "aten" or seeded:
        return False
    if has_divided(call.given):
        return False
    if any(
        item.is_conj() or item.is_neg() for item in tensors_in((*call.args, *call.kwargs.values()))
    ):
        return False
    key = _without_sizes(call.key)
    sizes = _sizes.find(key) or _sizes.add(key, _Sizes())
    if sizes.programs < _PROGRAMS or _nbytes(call) > _BYTES:
        sizes.programs += 1
        return False
    count = sizes.calls.find(call.key) or sizes.calls.add(call.key, [0])
    count[0] += 1
    if count[0] >= _COMES_AGAIN:
        return False
    if not _warned:
        _warned.add(str(call.op))
        user_warnings.warn(
            f"sizes on device {NAME!r} keep changing: {call.op} has programs for {_PROGRAMS} of "
            "them. PyTorch computes such an operator on copies in host memory, while its arrays "
            "are small and a size is new. Where sizes keep changing, compile the function",
            HostFallbackWarning,
        )
    return True


def _nbytes(call: Call) -> int:
    return sum(torch.Size(item.shape).numel() * item.dtype.itemsize for item in call.given)


def _without_sizes(key: Hashable) -> Hashable:
    if isinstance(key, TensorKey):
        return key.place, len(key.shape), key.dtype, key.geometry is None
    if isinstance(key, tuple):
        return tuple(map(_without_sizes, key))
    return int if type(key) is int else key
