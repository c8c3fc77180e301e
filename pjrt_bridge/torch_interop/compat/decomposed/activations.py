"""Gradients of activations that were written over their arguments."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch._decomp import decomposition_table
from torch._ops import OpOverload

_SLOPES = {
    torch.ops.aten.leaky_relu_backward.default: (0, 1),
    torch.ops.aten.elu_backward.default: (0, 3),
}
"""Places among the arguments that are no tensors: of the slope, and of whether the result is given
instead of the argument."""


def activation_decompositions() -> dict[OpOverload, Callable[..., Any]]:
    """For each operator its decomposition."""
    return {
        op: partial(_of_known_signs, decomposition_table[op], places)
        for op, places in _SLOPES.items()
    }


def _of_known_signs(
    rule: Callable[..., Tensor], places: tuple[int, int], *args: Any, **kwargs: Any
) -> Any:
    """A gradient that a result tells, which one of a negative slope does not.

    There the operator stays, which refuses that; torch's decompositions give a wrong gradient.
    """
    numbers = [item for item in (*args, *kwargs.values()) if not isinstance(item, Tensor)]
    slope, is_result = (numbers[at] for at in places)
    if is_result and slope < 0:
        return NotImplemented
    return rule(*args, **kwargs)
