"""Gradients of activations that torch's own decompositions compute wrongly."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import nan
from typing import Any

import torch
from torch import Tensor
from torch._decomp import decomposition_table
from torch._decomp.decompositions import pw_cast_for_opmath
from torch._ops import OpOverload

_SLOPES = {
    torch.ops.aten.leaky_relu_backward.default: (0, 1),
    torch.ops.aten.elu_backward.default: (0, 3),
}
"""Places among the arguments that are no tensors: of the slope, and of whether the result is given
instead of the argument."""


def activation_decompositions() -> dict[OpOverload, Callable[..., Any]]:
    """For each operator its decomposition."""
    rules: dict[OpOverload, Callable[..., Any]] = {
        op: partial(_of_known_signs, decomposition_table[op], places)
        for op, places in _SLOPES.items()
    }
    return {**rules, torch.ops.aten.logit_backward.default: _logit_backward}


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


@pw_cast_for_opmath
def _logit_backward(grad_output: Tensor, self: Tensor, eps: float | None = None) -> Tensor:
    """The gradient, NaN of NaN; a negative `eps` is none (`logit_backward_kernel` in ATen).

    Torch's decomposition gives 0 of NaN, and cuts at negative limits.
    """
    none = eps is None or eps < 0
    low = 0.0 if eps is None or none else eps
    beyond = (self < low) | (self > 1.0 - low)
    return torch.where(beyond, nan if none else 0.0, grad_output / (self * (1.0 - self)))
