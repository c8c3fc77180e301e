"""What torch traces for accelerators otherwise than for the host."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.nn.attention import SDPBackend, sdpa_kernel

from pjrt_bridge.torch_interop.compat.decomposed.accelerator_attention import OneAttention
from pjrt_bridge.torch_interop.compat.operators import operator


@contextmanager
def portable_kernels(inputs: Iterable[Any], attending: Collection[str]) -> Iterator[None]:
    """Have torch trace no operators of one maker's libraries while a `with` block runs.

    For tensors on CUDA it would choose cuDNN's normalization and recurrent layers, and one of
    several fused attentions, each with operators of its own. In half precision attention is one
    operator here, otherwise products and a softmax.

    Args:
        inputs: of the graph that is traced.
        attending: torch's types of the devices on which attention is to be one operator.
    """
    found = {item.device.type for item in inputs if isinstance(item, Tensor)}
    kind = next((kind for kind in attending if kind in found), None)
    if kind is None:
        yield
        return
    enabled = torch.backends.cudnn.enabled
    # Its public form also changes cuDNN's other settings, or is forbidden beside torch's tests.
    torch._C._set_cudnn_enabled(False)
    try:
        with sdpa_kernel(SDPBackend.MATH), OneAttention(kind):
            yield
    finally:
        torch._C._set_cudnn_enabled(enabled)


def accelerator_decompositions(*, traced: bool) -> dict[OpOverload, Callable[..., Any]]:
    """A decomposition for each operator that takes more on accelerators than on the host.

    Args:
        traced: rules apply to tensors on the device alone, and those of the host raise their own
            error; otherwise everything is meant for the device.
    """
    op = operator("aten.histc.default")
    assert op is not None
    return {op: partial(_elsewhere, _histc) if traced else _histc}


def _elsewhere(rule: Callable[..., Any], tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
    return NotImplemented if tensor.device.type == "cpu" else rule(tensor, *args, **kwargs)


def _histc(tensor: Tensor, bins: int = 100, min: float = 0, max: float = 0) -> Any:
    """Counts of integers, which float64 holds exactly up to 2**53."""
    if tensor.is_floating_point():
        return NotImplemented
    return torch.histc(tensor.double(), bins, min, max).to(tensor.dtype)
