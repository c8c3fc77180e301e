"""Operators on sparse tensors of the device, which PyTorch computes in host memory.

Positions and values of such a tensor are resident; buffers are dense, so that programs take these
alone.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from pjrt_bridge.errors import DeviceError
from pjrt_bridge.torch_interop.compat import OpOverload, leave_alone
from pjrt_bridge.torch_interop.compat.devices import sparse_tensors, third_party_device
from pjrt_bridge.torch_interop.compat.devices.sparse_tensors import (
    is_sparse,
    made_of,
    parts_of,
    replace,
)
from pjrt_bridge.torch_interop.device.operators.host_calls import run_on_host
from pjrt_bridge.torch_interop.named_device.naming import NAME
from pjrt_bridge.torch_interop.resident.calls.calls import tensors_in
from pjrt_bridge.torch_interop.resident.client.chosen import existing_index
from pjrt_bridge.torch_interop.resident.storages import transfer
from pjrt_bridge.torch_interop.resident.storages.storage import is_resident

_REASON = "programs take no sparse tensors"


class SparseOperators:
    """Kernels of the operators on sparse tensors.

    Most of them are registered when the first such tensor is met, because there are many.

    Args:
        kernels: those of the device.
    """

    def __init__(self, kernels: third_party_device.OperatorKernels) -> None:
        self._kernels = kernels
        self._lock = threading.Lock()
        self._complete = False
        for key in sparse_tensors.KEYS:
            kernels.of_others(self._call, key)
            for name, kernel in sparse_tensors.kernels(key):
                kernels.of(name, self._completing(kernel), key)
            for op_name, own in _OWN.items():
                kernels.of(op_name, self._completing(own), key)

    def _completing(self, kernel: Callable[..., Any]) -> Callable[..., Any]:
        def complete(*args: Any, **kwargs: Any) -> Any:
            self._complete_all()
            return kernel(*args, **kwargs)

        return complete

    def _complete_all(self) -> None:
        with self._lock:
            if self._complete:
                return
            self._complete = True
            for key in sparse_tensors.KEYS:
                for op in sparse_tensors.composed_operators(key):
                    if str(op) not in _OWN:
                        self._kernels.of(str(op), partial(self._call, op), key)

    def _call(self, op: OpOverload, /, *args: Any, **kwargs: Any) -> Any:
        self._complete_all()
        index = 0
        for tensor in tensors_in((args, list(kwargs.values()))):
            if is_resident(tensor):
                index = tensor.device.index or 0
            elif tensor.dim():
                raise DeviceError(
                    f"{op}: Expected all tensors to be on the same device, but found one of shape "
                    f"{tuple(tensor.shape)} and layout {tensor.layout} on {tensor.device} beside "
                    f"those on {NAME!r}; move it with .to({NAME!r})"
                )
        return run_on_host(op, args, kwargs, index, _REASON)


# Where Dynamo does not compile the call of such an operator, it would follow it in here.
leave_alone(SparseOperators._call)


def _empty(size: Sequence[int], **options: Any) -> torch.Tensor:
    """`aten.empty.memory_format` of a sparse layout: no elements have positions."""
    device = options.pop("device", None)
    host = torch.empty(size, **options, device="cpu")
    return transfer.to_device(host, existing_index(device))


def _to_copy(tensor: torch.Tensor, **options: Any) -> torch.Tensor:
    """`aten._to_copy` of a sparse tensor of the device."""
    device = options.get("device") or tensor.device
    dtype = options.get("dtype") or tensor.dtype
    parts = [item.to(device) for item in parts_of(tensor)]
    copy = torch.clone if device == tensor.device else torch.Tensor.detach
    return made_of([*map(copy, parts[:-1]), copy(parts[-1]).to(dtype)], tensor)


def _copy(target: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    """`aten.copy_` of which one tensor is a sparse one of the device."""
    if not is_sparse(target) or target.layout != source.layout:
        raise DeviceError(
            f"aten.copy_: found a tensor of layout {source.layout} for one of layout "
            f"{target.layout}; convert it before, with to_dense() or to_sparse()"
        )
    if not is_resident(target):
        return target.copy_(source.cpu())
    parts = [item.to(target.device) for item in parts_of(source)]
    parts[-1] = parts[-1].to(target.dtype)
    replace(target, made_of(list(map(torch.clone, parts)), source))
    return target


_OWN: dict[str, Callable[..., Any]] = {
    "aten._to_copy.default": _to_copy,
    "aten.copy_.default": _copy,
    "aten.empty.memory_format": _empty,
}
"""Kernels for sparse tensors of either kind."""
