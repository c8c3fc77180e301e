"""Promises of results on a third-party device, made as for the host.

Some of torch's rules ask which device a tensor is on, and know a few by name: convolutions keep
`channels_last` on the host and lose it on a device that is not known. Here they promise what they
promise on the host, which is what the bridge computes.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch._ops import OpOverload
from torch._subclasses.fake_impls import op_implementations_checks
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils import _pytree as pytree

from pjrt_bridge.torch_interop.compat.promises.values import without_autocast

_HOST = torch.device("cpu")

_ASKING = frozenset(
    f"aten.{name}"
    for name in (
        "convolution.default",
        "_convolution.default",
        "_convolution.deprecated",
        "convolution_backward.default",
        "_embedding_bag.default",
        "_embedding_bag_forward_only.default",
        "nonzero_static.default",
        "pixel_shuffle.default",
    )
)
"""Operators whose rules ask for the device, found by comparing what torch promises of its database
of operators on either."""


def promise_as_host(name: str) -> None:
    """Have all such operators promise for a device, by its name, what they do for the host."""

    def rule(mode: FakeTensorMode, op: OpOverload, *args: Any, **kwargs: Any) -> Any:
        return _as_on_host(name, mode, op, args, kwargs)

    # The first that has an answer is taken.
    op_implementations_checks.insert(0, (_asks, rule))


@cache
def _asks(op: OpOverload) -> bool:
    return str(op) in _ASKING


def _as_on_host(name: str, mode: FakeTensorMode, op: OpOverload, args: Any, kwargs: Any) -> Any:
    given = pytree.tree_leaves((args, kwargs))
    devices = {item.fake_device for item in given if isinstance(item, FakeTensor)}
    (device, *others) = devices or (_HOST,)
    if others or device.type != name:
        return NotImplemented
    with mode, without_autocast():
        args, kwargs = _on(_HOST, (args, kwargs))
        return _on(device, op(*args, **kwargs))


def _on(device: torch.device, value: Any) -> Any:
    """A structure with promises of the same form for another device."""
    return pytree.tree_map_only(
        FakeTensor,
        lambda item: torch.empty_strided(
            item.shape, item.stride(), dtype=item.dtype, device=device
        ),
        value,
    )
