"""Functions of torch that take a size as a plain integer, for which Dynamo would make a new graph.

The schema of `linspace`, say, has no symbolic number of steps: each number of steps is a graph of
its own, until Dynamo gives up. While Dynamo traces for this backend, calls with symbolic sizes are
made of functions that take symbols.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._dynamo.variables.base import VariableTracker
from torch._dynamo.variables.lists import BaseListVariable
from torch._dynamo.variables.tensor import SymNodeVariable, TensorVariable
from torch._dynamo.variables.torch import TorchInGraphFunctionVariable
from torch._refs import tril_indices, triu_indices
from torch.nn import functional

_aten = torch.ops.aten

# -- what is traced --------------------------------------------------------------------------------


def linspace(
    start: float,
    end: float,
    steps: int,
    *,
    dtype: torch.dtype | None = None,
    device: torch.device | None = None,
) -> torch.Tensor:
    """`torch.linspace`, counted from both ends as ATen does (`RangeFactoriesKernel.cpp`)."""
    dtype = torch.get_default_dtype() if dtype is None else dtype
    if (
        dtype not in (torch.float32, torch.float64)
        or not isinstance(start, (int, float))
        or not isinstance(end, (int, float))
    ):
        made: torch.Tensor = _aten.linspace(start, end, steps, dtype=dtype, device=device)
        return made
    at = torch.arange(steps, dtype=dtype, device=device)
    step = (end - start) / max(steps - 1, 1)
    return torch.where(at < max(steps // 2, 1), start + step * at, end - step * (steps - 1 - at))


def logspace(
    start: float,
    end: float,
    steps: int,
    base: float = 10.0,
    *,
    dtype: torch.dtype | None = None,
    device: torch.device | None = None,
) -> torch.Tensor:
    """`torch.logspace`."""
    dtype = torch.get_default_dtype() if dtype is None else dtype
    if dtype not in (torch.float32, torch.float64):
        made: torch.Tensor = _aten.logspace(start, end, steps, base, dtype=dtype, device=device)
        return made
    return torch.pow(base, linspace(start, end, steps, dtype=dtype, device=device))


def kron(input: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """`torch.kron`."""
    rank = max(input.dim(), other.dim())
    input = input[(None,) * (rank - input.dim())]
    other = other[(None,) * (rank - other.dim())]
    sizes = [one * more for one, more in zip(input.shape, other.shape, strict=True)]
    for dim in range(rank):
        input, other = input.unsqueeze(2 * dim + 1), other.unsqueeze(2 * dim)
    return (input * other).reshape(sizes)


def affine_grid(
    theta: torch.Tensor, size: Sequence[int], align_corners: bool = False
) -> torch.Tensor:
    """`torch.nn.functional.affine_grid`."""
    count = len(size) - 2
    if theta.dim() != 3 or count not in (2, 3) or theta.shape[1:] != (count, count + 1):
        return torch.affine_grid_generator(theta, size, align_corners)
    found = theta[:, :, count].reshape(-1, *[1] * count, count)
    for at, length in enumerate(size[2:]):
        line = linspace(-1.0, 1.0, length, dtype=theta.dtype, device=theta.device)
        if not align_corners:
            line = line * ((length - 1) / length)
        # The coordinates of a point are named from the last dimension to the first.
        factors = theta[:, :, count - 1 - at].reshape(-1, *[1] * count, count)
        found = found + line.reshape(-1, *[1] * (count - at)) * factors
    return found


def _pool(
    dims: int, whole: Callable[..., Any], otherwise: Callable[..., Any]
) -> Callable[..., torch.Tensor]:
    """A pooling function, for which a window over all there is may be of any size."""

    def pool(
        input: torch.Tensor, kernel_size: Any, stride: Any = None, *others: Any
    ) -> torch.Tensor:
        kernel = (kernel_size,) * dims if isinstance(kernel_size, int) else tuple(kernel_size)
        if not others and kernel == tuple(input.shape[-dims:]):
            result: torch.Tensor = whole(input, 1)
        else:
            result = otherwise(input, kernel_size, stride or kernel_size, *others)
        return result

    return pool


# -- while Dynamo traces ---------------------------------------------------------------------------

_OPTIONS = frozenset(
    (
        *("align_corners", "base", "col", "device", "dtype", "end", "input", "kernel_size"),
        *("offset", "other", "row", "size", "start", "steps", "stride", "theta"),
    )
)
"""Keyword arguments that what is traced instead takes."""


def _trace_instead(function: Any, instead: Any, is_for_us: Callable[[Any], bool]) -> None:
    handlers: Any = TorchInGraphFunctionVariable._get_handlers()
    before = handlers.get(function)

    def handle(self: Any, tx: Any, *args: Any, **kwargs: Any) -> Any:
        given = (*args, *kwargs.values())
        has_symbols = _has_symbolic_shape if function is torch.kron else _has_symbols
        if is_for_us(tx) and _OPTIONS.issuperset(kwargs) and any(map(has_symbols, given)):
            return tx.inline_user_function_return(VariableTracker.build(tx, instead), args, kwargs)
        return None if before is None else before(self, tx, *args, **kwargs)

    handlers[function] = handle


def _has_symbols(value: Any) -> bool:
    """Whether an argument of a call that is traced is a symbolic size, or holds one."""
    if isinstance(value, BaseListVariable):
        return any(map(_has_symbols, value.items))
    return isinstance(value, SymNodeVariable)


def _has_symbolic_shape(value: Any) -> bool:
    """Whether an argument is a tensor with symbolic sizes."""
    if not isinstance(value, TensorVariable):
        return False
    shape = value.as_proxy().node.meta["example_value"].shape
    return any(isinstance(size, torch.SymInt) for size in shape)


def trace_symbolic_sizes(is_for_us: Callable[[Any], bool]) -> None:
    """Have Dynamo trace the functions above where sizes are symbols.

    Args:
        is_for_us: says of Dynamo's translator whether it traces for this backend.
    """
    calls = {
        torch.linspace: linspace,
        torch.logspace: logspace,
        torch.kron: kron,
        torch.tril_indices: tril_indices,
        torch.triu_indices: triu_indices,
        functional.affine_grid: affine_grid,
        functional.max_pool1d: _pool(1, functional.adaptive_max_pool1d, torch.max_pool1d),
        functional.max_pool2d: _pool(2, functional.adaptive_max_pool2d, torch.max_pool2d),
        functional.max_pool3d: _pool(3, functional.adaptive_max_pool3d, torch.max_pool3d),
        functional.avg_pool1d: _pool(1, functional.adaptive_avg_pool1d, _aten.avg_pool1d),
        functional.avg_pool2d: _pool(2, functional.adaptive_avg_pool2d, _aten.avg_pool2d),
        functional.avg_pool3d: _pool(3, functional.adaptive_avg_pool3d, _aten.avg_pool3d),
    }
    for function, instead in calls.items():
        _trace_instead(function, instead, is_for_us)
