"""Decompositions of what torch's kernels for accelerators take and those for the host refuse."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

from pjrt_bridge.torch_interop.compat.operators import operator


def accelerator_decompositions(*, traced: bool) -> dict[OpOverload, Callable[..., Any]]:
    """For each such operator the rule that takes it apart.

    Args:
        traced: rules look at where their tensors are, and leave the host's alone, which raises its
            own error; otherwise everything is meant for the device.
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
