"""Decompositions of operators that autograd in C++ calls, and graphs of torch.compile do not have.

AOTAutograd decomposes a function before it differentiates it, so that graphs have neither these
operators nor their gradients. On a device every call reaches its kernel, and its gradient is an
operator of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch._decomp import decomposition_table
from torch._ops import OpOverload
from torch._prims_common import suggest_memory_format

from pjrt_bridge.torch_interop.compat.operators import by_operator, operator


def eager_decompositions() -> dict[OpOverload, Callable[..., Any]]:
    """For each such operator its decomposition."""
    rules: dict[str, Callable[..., Any]] = {
        "cholesky": _cholesky,
        "hardshrink_backward": _shrink_backward,
        "normal_functional": _normal,
        "softshrink_backward": _shrink_backward,
        "uniform": _uniform,
    }
    for name, weights in _RESIZING.items():
        forward = operator(f"aten.{name}.default")
        if forward in decomposition_table:
            rules[name] = partial(_resize, decomposition_table[forward])
        rules[f"{name}_backward"] = partial(_resize_backward, weights)
    return by_operator({f"aten.{name}.default": rule for name, rule in rules.items()})


def _cholesky(self: Tensor, upper: bool = False) -> Tensor:
    """The deprecated operator, which raises for a matrix that is not positive-definite."""
    factor: Tensor
    factor, info = torch.linalg.cholesky_ex(self, upper=upper)
    torch.ops.aten._linalg_check_errors(info, "cholesky", is_matrix=self.dim() == 2)
    return factor


def _shrink_backward(grad: Tensor, self: Tensor, lambd: Any) -> Tensor:
    """The gradient; of NaN too (`shrink_backward_kernel` in ATen)."""
    return torch.where((self >= -lambd) & (self <= lambd), torch.zeros_like(grad), grad)


def _normal(self: Tensor, mean: float = 0, std: float = 1) -> Any:
    """Complex numbers as pairs: both parts have the mean, and half of the variance."""
    if not self.is_complex():
        return NotImplemented
    draw, parts = torch.ops.aten.normal_functional.default, torch.view_as_real(self)
    return torch.view_as_complex(draw(parts, mean, std / math.sqrt(2)))


def _uniform(self: Tensor, low: float = 0, high: float = 1) -> Any:
    """Complex numbers as pairs with the same limits."""
    if not self.is_complex():
        return NotImplemented
    parts = torch.ops.aten.uniform.default(torch.view_as_real(self), low, high)
    return torch.view_as_complex(parts)


Weights = Callable[[Tensor, int, Sequence[Any]], Tensor]
"""(rows, count, options): (1, size, size) rows resized to (1, size, count). The options of one
dimension are `align_corners`, if the operator has that, and the scale."""


def _nearest(name: str, rows: Tensor, count: int, options: Sequence[Any]) -> Tensor:
    found: Tensor = getattr(torch.ops.aten, name).default(rows, [count], *options)
    return found


def _linear(rows: Tensor, count: int, options: Sequence[Any]) -> Tensor:
    found: Tensor = torch.ops.aten.upsample_linear1d.default(rows, [count], *options)
    return found


def _cubic(rows: Tensor, count: int, options: Sequence[Any]) -> Tensor:
    align_corners, scale = options
    found: Tensor = torch.ops.aten.upsample_bicubic2d.default(
        rows.unsqueeze(3), [count, 1], align_corners, scale, None
    )
    return found.squeeze(3)


_RESIZING: dict[str, Weights] = {
    **{f"upsample_nearest{n}d": partial(_nearest, "upsample_nearest1d") for n in (1, 2, 3)},
    **{
        f"_upsample_nearest_exact{n}d": partial(_nearest, "_upsample_nearest_exact1d")
        for n in (1, 2, 3)
    },
    "upsample_linear1d": _linear,
    "upsample_bilinear2d": _linear,
    "upsample_trilinear3d": _linear,
    "upsample_bicubic2d": _cubic,
}


def _resize(
    rule: Callable[..., Tensor], self: Tensor, output_size: Sequence[int], *options: Any
) -> Tensor:
    """The operator by torch's decomposition, which takes sizes that the operator refuses.

    Raises:
        RuntimeError: a size of 0, but for the batch.
    """
    sizes = (*self.shape[1:], *output_size)
    if min(sizes) < 1:
        raise RuntimeError(f"expected sizes of 1 or more, found {sizes}")
    found = rule(self, output_size, *options)
    return found.contiguous(memory_format=suggest_memory_format(self))


def _resize_backward(
    weights: Weights,
    grad: Tensor,
    output_size: Sequence[int],
    input_size: Sequence[int],
    *options: Any,
) -> Tensor:
    """The gradient of (batch, channels, ...) resized, by the transposed weights of each dimension.

    The weights are what the operator makes of the rows of an identity matrix.
    """
    # `align_corners`, if the operator has that, and scales; arguments may be left out at the end.
    corners = [item for item in options if isinstance(item, bool)]
    given = options[len(corners) :]
    scales = (*given, *[None] * (len(output_size) - len(given)))
    wide = torch.float64 if grad.dtype is torch.float64 else torch.float32
    found = grad.to(wide)
    for at, (size, count, scale) in enumerate(
        zip(input_size[2:], output_size, scales, strict=True)
    ):
        rows = torch.eye(size, dtype=wide, device=grad.device).unsqueeze(0)
        matrix = weights(rows, count, (*corners, scale)).squeeze(0)
        found = torch.tensordot(found, matrix, dims=([2 + at], [1])).movedim(-1, 2 + at)
    order = suggest_memory_format(grad)
    return found.to(grad.dtype).contiguous(memory_format=order)
