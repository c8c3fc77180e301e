"""Operators whose kernels give an image without elements back in its shape.

Torch's decompositions give it the shape that an image with elements would get. `pixel_unshuffle` is
such an operator (ATen's `PixelShuffleKernel.cpp`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch._decomp import decomposition_table
from torch._ops import OpOverload
from torch._prims_common import suggest_memory_format
from torch.fx.experimental.symbolic_shapes import guard_or_false

from pjrt_bridge.torch_interop.compat.operators import operator


def empty_image_decompositions() -> dict[OpOverload, Callable[..., Any]]:
    """For `pixel_unshuffle` its decomposition."""
    found = operator("aten.pixel_unshuffle.default")
    if found not in decomposition_table:
        return {}
    rule = decomposition_table[found]

    def decomposed(self: Tensor, downscale_factor: int) -> Any:
        # For an image without elements, too: it raises for what the operator refuses.
        image = rule(self, downscale_factor)
        if guard_or_false(self.numel() == 0):
            return self.clone(memory_format=suggest_memory_format(self))
        return image

    return {found: decomposed}
