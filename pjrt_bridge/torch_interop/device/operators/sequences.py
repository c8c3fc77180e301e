"""`out=` of operators that make sequences: what is written keeps its shape if the count fits."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from pjrt_bridge import user_warnings
from pjrt_bridge.torch_interop.compat import OpOverload, operator
from pjrt_bridge.torch_interop.device.operators.operators import call
from pjrt_bridge.torch_interop.resident.storages.factories import resize

_MAKERS = {
    "aten.arange.start_out": "aten.arange.start_step",
    "aten.range.out": "aten.range.step",
    "aten.linspace.out": "aten.linspace.default",
    "aten.logspace.out": "aten.logspace.default",
    "aten.eye.out": "aten.eye.default",
    "aten.eye.m_out": "aten.eye.m",
}
"""Operators with `out=`, and those that make what they write."""


def kernels() -> dict[str, Callable[..., Any]]:
    """Kernels of these operators by name."""
    made: dict[str, Callable[..., Any]] = {}
    for name, maker in _MAKERS.items():
        op = operator(maker)
        if op is not None:
            made[name] = partial(_write, op, "arange" in name)
    return made


def _write(
    op: OpOverload, warns: bool, /, *args: Any, out: torch.Tensor, **options: Any
) -> torch.Tensor:
    """Write what an operator makes into `out`, in the order of its elements.

    Args:
        op: the operator without `out=`.
        warns: of another count of elements, which rounding errors may give, PyTorch warns.
        args: the operator's.
        out: is given another shape if it has another count of elements.
        options: the operator's.
    """
    made = call(op, *args, **options, dtype=out.dtype, device=out.device)
    if made.dim() > 1:
        return resize(out, made.shape).copy_(made)
    if made.numel() != out.numel():
        if warns and out.numel():
            user_warnings.warn(
                f"out= of shape {list(out.shape)} has {out.numel()} elements, and arange computed "
                f"{made.numel()}, perhaps by a rounding error: it is given the shape "
                f"({made.numel()},)",
                UserWarning,
            )
        resize(out, made.shape)
    return out.copy_(made.view(out.shape))
