"""Collective operations of torch.distributed on tensors of the device: on the host, by copies.

Process groups for the host, such as gloo, know nothing of the device. What they call to exchange
tensors are operators, whose kernels for the device copy the tensors to the host, call the operator
there, and copy what it wrote back. They return when that is done; a receipt is waited for on
another thread, so that a process can receive before it sends.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from pjrt_bridge.torch_interop import compat
from pjrt_bridge.torch_interop.compat import process_groups
from pjrt_bridge.torch_interop.resident.storages.storage import is_resident

_RECEIVING = ("c10d::recv_", "c10d::recv_any_source_")
_READING = ("c10d::send", "c10d::barrier", "c10d::monitored_barrier_")
"""Operators that write nothing into their first argument; all others write into it alone."""


def run_on_host(op: compat.OpOverload, *args: Any, **kwargs: Any) -> Any:
    """Run an operator of torch.distributed on copies in host memory; its results for the device.

    Raises:
        Exception: what it raises for tensors of the host.
    """
    name = op._schema.name
    host = [_on_host(item) for item in args]
    found = op(*host, **{key: _on_host(item) for key, item in kwargs.items()})
    work = found[-1] if isinstance(found, (tuple, list)) else found
    if name in _READING:
        return found
    targets, sources = compat.tree_leaves(args[0]), compat.tree_leaves(host[0])
    if name in _RECEIVING:
        return process_groups.Receipt(work, lambda: _finish(work, targets, sources)).returned()
    _finish(work, targets, sources)
    return (args[0], work) if isinstance(found, (tuple, list)) else work


def _on_host(item: Any) -> Any:
    if isinstance(item, (list, tuple)):
        return [_on_host(each) for each in item]
    return item.cpu() if isinstance(item, torch.Tensor) and is_resident(item) else item


def _finish(work: Any, targets: Sequence[Any], sources: Sequence[Any]) -> None:
    if work is not None:
        work.wait()
    with torch.no_grad():
        for target, source in zip(targets, sources, strict=True):
            if target is not source:
                target.detach().copy_(source)
