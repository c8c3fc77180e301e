"""What a caller does with results in eager mode, after a call and before the next one."""

from __future__ import annotations

from collections.abc import Callable

import torch


def _written(result: torch.Tensor) -> None:
    if result.dtype is torch.bool:
        result.logical_not_()
    else:
        result.add_(1)


def _out(result: torch.Tensor) -> None:
    if result.dtype is torch.bool:
        torch.logical_not(result, out=result)
    else:
        torch.mul(result, 2, out=result)


def _out_of_other_size(result: torch.Tensor) -> None:
    other = torch.ones(result.numel() + 2, dtype=result.dtype)
    torch.where(other.bool(), other, other, out=result)


def _reached(result: torch.Tensor) -> int:
    """How many elements of memory a result reaches."""
    # Not the size of the storage: that of a view may be larger than in eager mode.
    if not result.numel():
        return 0
    steps = zip(result.shape, result.stride(), strict=True)
    return 1 + sum((size - 1) * step for size, step in steps)


def _resized(result: torch.Tensor, count: int) -> None:
    reached = _reached(result)
    # In gaps between its elements lies whatever was there.
    known = reached if reached <= result.numel() else 0
    result.resize_(count)
    # And behind them.
    result[known:].fill_(1)


def _grown(result: torch.Tensor) -> None:
    _resized(result, result.numel() + 3)


def _shrunk(result: torch.Tensor) -> None:
    # On device `pjrt` no storage grows that others share, as it would where elements overlap.
    _resized(result, max(min(_reached(result), result.numel()) - 1, 0))


def _transposed(result: torch.Tensor) -> None:
    if result.dim() > 1:
        result.transpose_(0, 1)


def _exchanged(result: torch.Tensor) -> None:
    other = torch.ones(3, dtype=result.dtype)
    result.set_(other.untyped_storage(), 0, other.size(), other.stride())


def _weighted(result: torch.Tensor) -> torch.Tensor | None:
    if not (result.is_floating_point() or result.is_complex()):
        return None
    weight = torch.full((), 2.0, dtype=result.dtype, device=result.device).requires_grad_()
    with torch.enable_grad():
        result.mul_(weight)
    return weight


WEIGHTED = "weighted"
"""The use that comes before gradients are computed; those of the weights are computed, too."""


def weigh(result: torch.Tensor) -> tuple[str, torch.Tensor | None]:
    """Multiply a result in place by a new leaf; the name of an exception, or the leaf."""
    try:
        return "", _weighted(result)
    except Exception as error:
        return type(error).__name__, None


USES: dict[str, Callable[[torch.Tensor], None]] = {
    "written": _written,
    "out": _out,
    "out_of_other_size": _out_of_other_size,
    "grown": _grown,
    "shrunk": _shrunk,
    "transposed": _transposed,
    "exchanged": _exchanged,
}
"""Those after gradients were computed, by name."""

_GROWING = ("grown", "out_of_other_size")


def use(name: str, result: torch.Tensor) -> str:
    """Do it with a result; the name of the exception where it raises."""
    if name in _GROWING and not result.numel() and result.untyped_storage().nbytes():
        # Where an empty part of a tensor lies, torch (2.13) promises otherwise than eager mode
        # does it where a dimension has size one, and it would be seen.
        return "not done"
    try:
        with torch.no_grad():
            USES[name](result)
    except Exception as error:
        return type(error).__name__
    return ""
