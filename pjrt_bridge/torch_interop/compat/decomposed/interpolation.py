"""Interpolation: linear by weighted sums, as ATen computes it; with known sizes it stays.

Torch's own decompositions (2.13) add `(next - this) * weight` to an element, which is NaN beside an
infinity that ATen weighs with zero or leaves out.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch._C import DispatchKey
from torch._decomp.decompositions import (
    _upsample_linear,
    upsample_bicubic2d_default,
    upsample_compute_output_size,
)
from torch._ops import OpOverload
from torch._prims_common import suggest_memory_format
from torch.fx.experimental.symbolic_shapes import guard_or_false

from pjrt_bridge.torch_interop.compat.operators import by_operator
from pjrt_bridge.torch_interop.compat.promises.values import is_symbolic

_NAMES = ("upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d")
_CUBIC = "upsample_bicubic2d"
_HALF = (torch.float16, torch.bfloat16)


def interpolation_decompositions() -> dict[OpOverload, Callable[..., Any]]:
    """For each operator its decomposition."""
    ways = {**dict.fromkeys(_NAMES, _resized), _CUBIC: _resized_cubic}
    rules: dict[str, Callable[..., Any]] = {
        **{f"aten.{name}.default": partial(_unless_kept, way) for name, way in ways.items()},
        **{f"aten.{name}.vec": partial(_by_factors, name, way) for name, way in ways.items()},
    }
    return by_operator(rules)


def _by_factors(
    name: str,
    way: Callable[..., Tensor],
    input: Tensor,
    output_size: Sequence[int] | None,
    align_corners: bool,
    scale_factors: Sequence[float] | None,
) -> Tensor:
    sizes: Sequence[int] = upsample_compute_output_size(  # type: ignore[no-untyped-call]
        input.size(), output_size, scale_factors
    )
    if not _is_kept(input, sizes):
        return way(input, sizes, align_corners, *(scale_factors or ()))
    op = getattr(torch.ops.aten, name).default
    found: Tensor = op(input, sizes, align_corners, *(scale_factors or ()))
    return found


def _is_kept(input: Tensor, output_size: Sequence[int]) -> bool:
    """Whether the operator stays, which has a lowering; padding needs the places of elements."""
    changes = is_symbolic(input) or any(map(is_symbolic, output_size))
    return input.is_floating_point() and not changes


def _unless_kept(
    way: Callable[..., Tensor],
    input: Tensor,
    output_size: Sequence[int],
    align_corners: bool,
    *scales: float | None,
) -> Tensor:
    if _is_kept(input, output_size):
        stays: Tensor = NotImplemented
        return stays
    return way(input, output_size, align_corners, *scales)


def _resized_cubic(
    input: Tensor, output_size: Sequence[int], align_corners: bool, *scales: float | None
) -> Tensor:
    """By torch's own decomposition."""
    found: Tensor = upsample_bicubic2d_default(input, output_size, align_corners, *scales)
    return found


def _resized(
    input: Tensor, output_size: Sequence[int], align_corners: bool, *scales: float | None
) -> Tensor:
    """(batch, channels, *sizes) to (batch, channels, *output_size).

    Half precision is weighed in float32; along one and three dimensions by weights that are rounded
    to half precision (ATen/native/cpu/UpSampleKernel.cpp).
    """
    given = (*scales, *[None] * (len(output_size) - len(scales)))
    if not input.is_floating_point():
        found: Tensor = _upsample_linear(input, output_size, align_corners, given)
        return found
    dtype = torch.float64 if input.dtype is torch.float64 else torch.float32
    rounded = input.dtype if input.dtype in _HALF and len(output_size) != 2 else dtype
    places, weights = [], []
    for at, (size, count) in enumerate(zip(input.shape[2:], output_size, strict=True)):
        first, second, weight = _along(
            size, count, align_corners, given[at], dtype=dtype, device=input.device
        )
        shape = (-1, *[1] * (len(output_size) - 1 - at))
        places.append((first.reshape(shape), second.reshape(shape)))
        near = weight.to(rounded)
        weights.append([part.to(dtype).reshape(shape) for part in (1 - near, near)])
    values = [
        torch.ops.aten._unsafe_index(input, [None, None, *place]).to(dtype)
        for place in itertools.product(*places)
    ]
    for far, near in reversed(weights):
        values = [
            one * far + other * near for one, other in zip(values[::2], values[1::2], strict=True)
        ]
    result: Tensor = values[0].to(input.dtype)
    return result.contiguous(memory_format=suggest_memory_format(input))


def _along(
    size: int,
    count: int,
    align_corners: bool,
    scale: float | None,
    *,
    dtype: torch.dtype,
    device: torch.device,
) -> tuple[Tensor, Tensor, Tensor]:
    """(count,) each: the places of two elements, and the weight of the second one."""
    index = torch.arange(count, device=device)
    if guard_or_false(size == count):
        # Whatever the scale is.
        return index, index, torch.zeros_like(index, dtype=dtype)
    place = index.to(dtype)
    if align_corners:
        source = place * ((size - 1) / (count - 1) if count > 1 else 0.0)
    else:
        source = (place + 0.5) * (1 / scale if scale else size / count) - 0.5
    source = source.clamp(min=0.0)
    first = source.to(torch.int64).clamp(max=size - 1)
    return first, (first + 1).clamp(max=size - 1), (source - first).clamp(0.0, 1.0)


def _correct_interpolation() -> None:
    """Have all tracing use these: torch gives its own decompositions before a backend is asked.

    Of an operator that stays autograd has the gradient.
    """
    for op, rule in interpolation_decompositions().items():
        is_whole = op._overloadname == "default"
        for key in (DispatchKey.Autograd, DispatchKey.CompositeImplicitAutograd):
            if key in op.py_kernels and is_whole:
                del op.py_kernels[key]
            elif key in op.py_kernels:
                op.py_kernels[key] = rule
        op._dispatch_cache.clear()


_correct_interpolation()
