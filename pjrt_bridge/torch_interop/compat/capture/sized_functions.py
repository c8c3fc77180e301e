"""Functions of torch that take a size, made of functions that take symbolic sizes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

_aten = torch.ops.aten

_Dtype = torch.dtype | None
_Placed = torch.device | str | None

# -- numbers in order ------------------------------------------------------------------------------


def linspace(
    start: float,
    end: float,
    steps: int,
    *,
    dtype: _Dtype = None,
    device: _Placed = None,
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
    dtype: _Dtype = None,
    device: _Placed = None,
) -> torch.Tensor:
    """`torch.logspace`."""
    dtype = torch.get_default_dtype() if dtype is None else dtype
    if dtype not in (torch.float32, torch.float64):
        made: torch.Tensor = _aten.logspace(start, end, steps, base, dtype=dtype, device=device)
        return made
    return torch.pow(base, linspace(start, end, steps, dtype=dtype, device=device))


def fftfreq(
    n: int, d: float = 1.0, *, dtype: _Dtype = None, device: _Placed = None
) -> torch.Tensor:
    """`torch.fft.fftfreq`: those behind the middle are negative."""
    dtype = torch.get_default_dtype() if dtype is None else dtype
    at = torch.arange(n, device=device)
    return torch.where(at < (n + 1) // 2, at, at - n).to(dtype) * (1.0 / (n * d))


def rfftfreq(
    n: int, d: float = 1.0, *, dtype: _Dtype = None, device: _Placed = None
) -> torch.Tensor:
    """`torch.fft.rfftfreq`."""
    dtype = torch.get_default_dtype() if dtype is None else dtype
    return torch.arange(n // 2 + 1, device=device).to(dtype) * (1.0 / (n * d))


# -- windows (`TensorFactories.cpp`) ---------------------------------------------------------------


def _window(
    length: int,
    periodic: bool,
    dtype: _Dtype,
    device: _Placed,
    whole: float,
    of_parts: Callable[[torch.Tensor], torch.Tensor],
) -> torch.Tensor:
    """A window as a function of positions, from 0 to `whole` at its end.

    Raises:
        RuntimeError: the element type is none of real floating-point numbers; PyTorch runs the
            call then, and raises where it refuses the type.
    """
    dtype = torch.get_default_dtype() if dtype is None else dtype
    if not dtype.is_floating_point:
        raise RuntimeError(f"expected a floating-point element type for a window, found {dtype}")
    if length <= 1:
        return torch.ones(length, dtype=dtype, device=device)
    at = torch.arange(length, device=device).to(dtype)
    return of_parts(at * (whole / (length if periodic else length - 1)))


def hamming_window(
    window_length: int,
    periodic: bool = True,
    alpha: float = 0.54,
    beta: float = 0.46,
    *,
    dtype: _Dtype = None,
    device: _Placed = None,
) -> torch.Tensor:
    """`torch.hamming_window`."""

    def values(x: torch.Tensor) -> torch.Tensor:
        return alpha - beta * torch.cos(x)

    return _window(window_length, periodic, dtype, device, 2 * math.pi, values)


def hann_window(
    window_length: int, periodic: bool = True, *, dtype: _Dtype = None, device: _Placed = None
) -> torch.Tensor:
    """`torch.hann_window`."""
    return hamming_window(window_length, periodic, 0.5, 0.5, dtype=dtype, device=device)


def blackman_window(
    window_length: int, periodic: bool = True, *, dtype: _Dtype = None, device: _Placed = None
) -> torch.Tensor:
    """`torch.blackman_window`."""

    def values(x: torch.Tensor) -> torch.Tensor:
        return 0.42 - 0.5 * torch.cos(x) + 0.08 * torch.cos(2 * x)

    return _window(window_length, periodic, dtype, device, 2 * math.pi, values)


def bartlett_window(
    window_length: int, periodic: bool = True, *, dtype: _Dtype = None, device: _Placed = None
) -> torch.Tensor:
    """`torch.bartlett_window`."""

    def values(x: torch.Tensor) -> torch.Tensor:
        return torch.where(x <= 1, x, 2 - x)

    return _window(window_length, periodic, dtype, device, 2.0, values)


def kaiser_window(
    window_length: int,
    periodic: bool = True,
    beta: float = 12.0,
    *,
    dtype: _Dtype = None,
    device: _Placed = None,
) -> torch.Tensor:
    """`torch.kaiser_window`."""

    def values(x: torch.Tensor) -> torch.Tensor:
        arch = torch.sqrt(torch.clamp(1 - (x - 1) ** 2, min=0))
        whole = torch.special.i0(torch.full_like(x[:1], beta))
        made: torch.Tensor = torch.special.i0(beta * arch) / whole
        return made

    return _window(window_length, periodic, dtype, device, 2.0, values)


# -- numbers counted -------------------------------------------------------------------------------


def one_hot(input: torch.Tensor, num_classes: int = -1) -> torch.Tensor:
    """`torch.nn.functional.one_hot`, with the checks of PyTorch's decomposition."""
    if input.dtype != torch.int64 or num_classes < 0:
        made: torch.Tensor = _aten.one_hot(input, num_classes)
        return made
    _aten._assert_async.msg(torch.all(input >= 0), "one_hot: Class values must be non-negative.")
    _aten._assert_async.msg(
        torch.all(input < num_classes), "one_hot: Class values must be smaller than num_classes."
    )
    numbers = torch.arange(num_classes, device=input.device)
    return torch.eq(input.unsqueeze(-1), numbers).to(torch.int64)


def histc(input: torch.Tensor, bins: int = 100, min: float = 0, max: float = 0) -> torch.Tensor:
    """`torch.histc`: the last bin holds its upper end."""
    if (
        input.dtype not in (torch.float32, torch.float64)
        or input.numel() == 0
        or bins < 1
        or min > max
    ):
        made: torch.Tensor = _aten.histc(input, bins, min, max)
        return made
    flat = input.detach().reshape(-1)
    low: Any = min
    high: Any = max
    if min == max:
        low, high = torch.aminmax(flat)
        finite = torch.isfinite(low) & torch.isfinite(high)
        _aten._assert_async.msg(finite, "torch.histc: the range of the input is not finite")
        low, high = torch.where(low == high, low - 1, low), torch.where(low == high, high + 1, high)
    inside = (flat >= low) & (flat <= high)
    place = ((flat - low) * bins / (high - low)).to(torch.int64)
    place = torch.where(inside, torch.clamp(place, 0, bins - 1), 0)
    return flat.new_zeros(bins).index_add(0, place, inside.to(flat.dtype))


# -- tensors of sizes ------------------------------------------------------------------------------


def as_tensor(
    data: Any, dtype: torch.dtype | None = None, device: torch.device | None = None
) -> torch.Tensor:
    """`torch.as_tensor` of numbers, which share no memory."""
    return torch.tensor(data, dtype=dtype, device=device)


# -- tensors of other sizes ------------------------------------------------------------------------


def affine_grid(
    theta: torch.Tensor, size: Sequence[int], align_corners: bool = False
) -> torch.Tensor:
    """`torch.nn.functional.affine_grid`."""
    count = len(size) - 2
    if theta.dim() != 3 or count not in (2, 3) or theta.shape[1:] != (count, count + 1):
        return torch.affine_grid_generator(theta, size, align_corners)
    found = theta[:, :, count].reshape(-1, *[1] * count, count)
    for at, length in enumerate(size[2:]):
        if length == 1:
            continue  # One point lies in the middle, at 0.
        line = linspace(-1.0, 1.0, length, dtype=theta.dtype, device=theta.device)
        if not align_corners:
            line = line * ((length - 1) / length)
        # The coordinates of a point are named from the last dimension to the first.
        factors = theta[:, :, count - 1 - at].reshape(-1, *[1] * count, count)
        found = found + line.reshape(-1, *[1] * (count - at)) * factors
    return found


def adaptive_avg_pool1d(input: torch.Tensor, output_size: Any) -> torch.Tensor:
    """`torch.nn.functional.adaptive_avg_pool1d`."""
    (size,) = (output_size,) if isinstance(output_size, int) else output_size
    return torch.nn.functional.adaptive_avg_pool2d(input.unsqueeze(-2), (1, size)).squeeze(-2)


def einsum(equation: str, order: Sequence[int], *operands: torch.Tensor) -> torch.Tensor:
    """`torch.einsum`, with the pairs of tensors that are multiplied one after the other."""
    made: torch.Tensor = _aten.einsum.default(equation, operands, path=order)
    return made


def multi_dot(order: Sequence[int], *tensors: torch.Tensor) -> torch.Tensor:
    """`torch.linalg.multi_dot`, with which of those that are left to multiply with the next."""
    left = list(tensors)
    for at in order:
        left = [*left[:at], left[at] @ left[at + 1], *left[at + 2 :]]
    return left[0]


# -- indices ---------------------------------------------------------------------------------------


_MOST_DIMENSIONS = 32
"""A list of as many indices is none for each dimension, whatever they are."""


def _is_tensor(key: Any) -> bool:
    """Whether a sequence of numbers, or of such sequences, stands for a tensor of them."""
    return isinstance(key, (tuple, list)) and all(
        isinstance(item, int) or _is_tensor(item) for item in key
    )


def _indices(key: Any) -> Sequence[Any]:
    """The indices of the first dimensions (`treatSequenceAsTuple`)."""
    if isinstance(key, list):
        is_one = len(key) >= _MOST_DIMENSIONS or all(isinstance(item, int) for item in key)
        return [key] if is_one else key
    return key if isinstance(key, tuple) else [key]


def _without_numbers(x: torch.Tensor, key: Any) -> tuple[torch.Tensor, tuple[Any, ...]]:
    """A view of the rows that numbers among indices select, and the indices that are left.

    In PyTorch a number selects before tensors do (`python_variable_indexing.cpp`).
    """
    indices = [
        torch.tensor(item, device=x.device) if _is_tensor(item) else item for item in _indices(key)
    ]
    taken = 0
    for item in indices:
        if isinstance(item, torch.Tensor) and item.dtype in (torch.bool, torch.uint8):
            taken += item.dim()
        elif not (item is None or item is Ellipsis or isinstance(item, bool)):
            taken += 1
    left, rank, dim = [], x.dim(), 0
    for item in indices:
        if isinstance(item, int) and not isinstance(item, bool):
            # Torch (2.11) does not compare an index with a size where both are symbols.
            if item >= x.shape[dim] or item < -x.shape[dim]:
                raise IndexError(
                    f"index {item} is out of bounds for dimension {dim} with size {x.shape[dim]}"
                )
            x = x.select(dim, item)
            continue
        left.append(item)
        if item is Ellipsis:
            dim += rank - taken
        elif isinstance(item, torch.Tensor) and item.dtype in (torch.bool, torch.uint8):
            dim += item.dim()
        elif not (item is None or isinstance(item, bool)):
            dim += 1
    return x, tuple(left)


def getitem(x: torch.Tensor, key: Any) -> torch.Tensor:
    """`x[key]`."""
    rows, left = _without_numbers(x, key)
    return rows[left]


def setitem(x: torch.Tensor, key: Any, value: Any) -> None:
    """`x[key] = value`."""
    rows, left = _without_numbers(x, key)
    rows[left] = value


def write_selected(x: torch.Tensor, mask: torch.Tensor, rows: torch.Tensor) -> None:
    """`x[mask] = rows`, for as many rows as the mask selects, or one for all of them.

    Raises:
        RuntimeError: there are more or fewer.
    """
    rest = x.shape[mask.dim() :]
    chosen = mask.reshape(*mask.shape, *[1] * len(rest))
    if rows.dim() <= len(rest) or rows.shape[0] == 1:
        row = rows if rows.dim() <= len(rest) else rows[0]
        x.copy_(torch.where(chosen, row, x))
        return
    _aten._assert_async.msg(
        mask.sum() == rows.shape[0],
        # The number may be a symbol here, and would be one of the graph if a text had it.
        "index_put: shape mismatch: the mask selects another number of elements than are written",
    )
    x.masked_scatter_(chosen, rows.expand(rows.shape[0], *rest))
