"""Masks of `nn.TransformerEncoder` and `nn.TransformerDecoder`, whose data Dynamo is asked for.

Without `is_causal` the modules compare a mask with a causal one, to leave it out if both are the
same. Dynamo ends the graph there, and what follows in PyTorch's own functions is no code that it
goes on with: all layers would run in PyTorch. While Dynamo traces for this backend, such a mask is
used as any other, with the same results.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._dynamo.variables.functions import UserFunctionVariable
from torch.nn.modules import transformer

from pjrt_bridge.torch_interop.compat.capture.sized_calls import inlined


def trace_causal_masks(is_for_us: Callable[[Any], bool]) -> None:
    """Have Dynamo trace the modules without a look at the data of masks.

    Args:
        is_for_us: says of Dynamo's translator whether it traces for this backend.
    """
    before = UserFunctionVariable.call_function
    function = transformer._detect_is_causal_mask

    def call_function(self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
        if self.fn is function and is_for_us(tx):
            return inlined(tx, _is_said_to_be_causal, args, kwargs)
        return before(self, tx, args, kwargs)

    UserFunctionVariable.call_function = call_function  # type: ignore[method-assign]


def _is_said_to_be_causal(
    mask: torch.Tensor | None, is_causal: bool | None = None, size: int | None = None
) -> bool:
    return is_causal is True
