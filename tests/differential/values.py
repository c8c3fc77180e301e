"""The numbers that arguments of programs hold; printed tests use these functions, too."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, ParamSpec

import torch

_Parameters = ParamSpec("_Parameters")


def _made_on_host(
    function: Callable[_Parameters, torch.Tensor],
) -> Callable[_Parameters, torch.Tensor]:
    """Compute on the host, whatever the default device is, and put the result there."""

    @wraps(function)
    def made(*args: _Parameters.args, **kwargs: _Parameters.kwargs) -> torch.Tensor:
        device = torch.get_default_device()
        if device.type == "cpu":
            return function(*args, **kwargs)
        with torch.device("cpu"):
            found = function(*args, **kwargs)
        return found.to(device)

    return made


@_made_on_host
def numbers(shape: Sequence[int], dtype: torch.dtype, seed: int) -> torch.Tensor:
    """Small multiples of 1/4, or small integers: sums and products of some of them are exact.

    The same place in memory has the same number whatever the sizes are.
    """
    count = 1
    for size in shape:
        count *= size
    draws = torch.arange(count, dtype=torch.int64)
    # A multiplicative hash of place and seed: torch's generator is left alone.
    draws = (draws + 1) * 2654435761 + (seed + 1) * 40503
    draws = ((draws >> 7) ^ (draws >> 17)) % 31 - 15
    if dtype in (torch.int8, torch.uint8):
        # Sums of these leave the range.
        draws = draws * 7
    if dtype is torch.bool:
        found = draws > 0
    elif dtype is torch.uint8:
        found = draws.abs().to(dtype)
    elif dtype.is_complex:
        found = torch.complex(draws.double() / 4, draws.flip(0).double() / 4 - 1).to(dtype)
    elif dtype.is_floating_point:
        found = (draws.double() / 4).to(dtype)
    else:
        found = draws.to(dtype)
    # Not a view: torch treats those otherwise, and programs say where they have one.
    return found.reshape(tuple(shape)).clone()


@_made_on_host
def fine(shape: Sequence[int], dtype: torch.dtype, seed: int) -> torch.Tensor:
    """Numbers of 12 bits, which half precision rounds."""
    small = numbers(shape, torch.int64, seed + 1).double() / 512
    return (numbers(shape, torch.float64, seed) + small).to(dtype)


@_made_on_host
def special(shape: Sequence[int], dtype: torch.dtype, seed: int) -> torch.Tensor:
    """Numbers among which are NaN, infinities and a negative zero."""
    found = numbers(shape, dtype, seed)
    flat = found.view(-1)
    for at, value in enumerate((float("nan"), float("inf"), float("-inf"), -0.0)):
        flat[at + seed % 3 :: 7] = value
    return found


@_made_on_host
def positions(shape: Sequence[int], limit: int, seed: int) -> torch.Tensor:
    """Indices below a limit, as int64."""
    return numbers(shape, torch.int64, seed) % max(limit, 1)


@_made_on_host
def order(count: int, seed: int) -> torch.Tensor:
    """All numbers below a count, in another order."""
    return torch.argsort(numbers((count,), torch.int64, seed), stable=True)


class Rounded(torch.autograd.Function):
    """Rounds; its gradient is that of the identity."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.round()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient


class Passed(torch.autograd.Function):
    """A view; its gradient is doubled, and needs the argument."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return gradient * 2 * x.cos()


class Written(torch.autograd.Function):
    """Writes into its argument, and returns it."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.mark_dirty(x)
        return x.mul_(3)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * 3


NAMES = {
    "torch": torch,
    "numbers": numbers,
    "fine": fine,
    "special": special,
    "positions": positions,
    "order": order,
    "Rounded": Rounded,
    "Passed": Passed,
    "Written": Written,
}
"""What the source of a program may name."""
