"""`index_fill` as `index_put`, which takes negative positions, too.

Torch's decomposition makes it an `index_copy`, which refuses them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch._ops import OpOverload
from torch.fx.experimental.symbolic_shapes import guard_or_false

from pjrt_bridge.torch_interop.compat.operators import by_operator


def filling_decompositions() -> dict[OpOverload, Callable[..., Any]]:
    """For each overload of `index_fill` its decomposition."""
    names = ("aten.index_fill.int_Scalar", "aten.index_fill.int_Tensor")
    return by_operator(dict.fromkeys(names, _index_fill))


def _index_fill(self: torch.Tensor, dim: int, index: torch.Tensor, value: Any) -> Any:
    tensor = isinstance(value, torch.Tensor)
    lossy = tensor and value.is_complex() and not self.is_complex()
    if index.dim() > 1 or index.dtype != torch.int64 or (tensor and value.dim()) or lossy:
        # The operator refuses these.
        return NotImplemented
    if self.dim() > 1 and guard_or_false(self.numel() == 0):
        others = math.prod(size for at, size in enumerate(self.shape) if at != dim % self.dim())
        if guard_or_false(self.shape[dim] != 0) or guard_or_false(others == 0):
            # Eager looks at no position.
            return self.clone()
        # The operator refuses any position.
        return NotImplemented
    line = self if self.dim() else self.reshape(1)
    before = [None] * (dim % line.dim())
    if not tensor:
        value = torch.scalar_tensor(value, dtype=self.dtype, device=self.device)
    filled = torch.ops.aten.index_put(line, [*before, index], value.to(self.dtype))
    return filled if self.dim() else filled.reshape(())
