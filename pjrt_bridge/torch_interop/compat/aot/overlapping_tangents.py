"""Gradients of results whose elements share memory: each needs an element of its own.

AOTAutograd copies the gradient of a result into a tensor that lies in memory as the result does,
since it traced the backward pass for that. Where elements of the result share memory, as those of
`x.unfold(0, 3, 1)` do, later elements of the gradient are written over earlier ones. Torch (2.13)
sees that of strides of 0 alone, and gave wrong gradients, with every backend.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch._functorch._aot_autograd.schemas import MemoryFormatMeta

from pjrt_bridge.runtime.transfers.apart import lie_apart


def keep_tangents_apart() -> None:
    """Have AOTAutograd, with any backend, lay such gradients out without gaps or overlaps."""
    kind: Any = MemoryFormatMeta
    before = getattr(kind, "from_tensor", None)
    if before is None:
        return

    def from_tensor(t: Tensor, force_use_memory_format: bool = False) -> Any:
        return before(t, force_use_memory_format or _overlaps(t))

    kind.from_tensor = staticmethod(from_tensor)


def _overlaps(tensor: Tensor) -> bool:
    """Whether elements of a tensor share memory; not for symbolic sizes, which torch sees to."""
    if tensor.layout is not torch.strided or tensor._has_symbolic_sizes_strides:
        return False
    return not lie_apart(tensor.shape, tensor.stride())
