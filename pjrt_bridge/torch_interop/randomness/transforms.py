"""Rules of the random operators with keys for `torch.vmap` and autograd.

A row of a mapped call gets what a call for that row alone gets: operators take a key for each row,
whose numbers are counted within the row. Gradients are those of ATen's operators.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from pjrt_bridge.torch_interop import compat
from pjrt_bridge.torch_interop.tensors import with_rows

ROW_BY_ROW = ("multinomial.default", "randperm.default")
"""Operators that take one key; all others take one for each row, too."""

_SIZES = ("size",)


def over_rows(name: str, operator: compat.OpOverload) -> Callable[..., Any]:
    """The rule of an operator for `torch.vmap`.

    Args:
        name: such as `"rand.default"`.
        operator: with a key.
    """

    def rule(info: Any, in_dims: Any, key: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        count = info.batch_size
        # The dimensions of arguments by keyword are not told: those are no tensors here.
        dims = tuple(in_dims[: 1 + len(args)]) if isinstance(in_dims, tuple) else in_dims
        key, *given = (
            with_rows(item, dim, count) if isinstance(item, torch.Tensor) else item
            for item, dim in zip((key, *args), dims, strict=True)
        )
        if name in ROW_BY_ROW:
            found = one_by_one(operator, key, given, kwargs)
        else:
            found = operator(key, *_aligned(operator, given, count), **kwargs)
        return found, tuple(0 for _ in found) if isinstance(found, tuple) else 0

    return rule


def one_by_one(
    operator: Callable[..., Any], keys: torch.Tensor, args: Sequence[Any], kwargs: Any
) -> Any:
    """The results of calls for each row, stacked; all tensors have a row for each key."""
    found = [
        operator(
            keys[row],
            *(item[row] if isinstance(item, torch.Tensor) else item for item in args),
            **kwargs,
        )
        for row in range(len(keys))
    ]
    if isinstance(found[0], tuple):
        return tuple(torch.stack(items) for items in zip(*found, strict=True))
    return torch.stack(found)


def _aligned(operator: compat.OpOverload, args: Sequence[Any], count: int) -> list[Any]:
    """The arguments of one call for all rows: tensors of one rank, sizes with that of the rows."""
    rank = max((item.dim() for item in args if isinstance(item, torch.Tensor)), default=0)
    made = []
    for parameter, item in zip(operator._schema.arguments[1:], args, strict=False):
        if isinstance(item, torch.Tensor):
            row = (1,) * (rank - item.dim()) + tuple(item.shape[1:])
            item = item.reshape(count, *row)
        elif parameter.name in _SIZES:
            item = [count, *item]
        made.append(item)
    return made


# -- gradients -------------------------------------------------------------------------------------


def gradients(
    name: str, operator: compat.OpOverload
) -> tuple[Callable[..., Any], Callable[..., Any] | None]:
    """The backward function of an operator, and what keeps values for it.

    Numbers that are drawn depend on no argument, but for the operators in `_SCALES`.
    """
    count = len(operator._schema.arguments)
    scale = _SCALES.get(name)
    if scale is None:
        return (lambda ctx, *given: (None,) * count), None

    def keep(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(inputs[1], output[1])
        ctx.options = inputs[2:]

    def backward(ctx: Any, given: Any, *_: Any) -> Any:
        taken = given * scale(*ctx.saved_tensors, *ctx.options)
        return (None, taken, *(None,) * (count - 2))

    return backward, keep


def _of_dropout(x: torch.Tensor, kept: torch.Tensor, p: float, train: bool | None) -> Any:
    if train is False:
        return 1.0
    return kept * (0.0 if p == 1 else 1 / (1 - p))


def _of_rrelu(
    x: torch.Tensor,
    slopes: torch.Tensor,
    noise: torch.Tensor,
    lower: float = 1 / 8,
    upper: float = 1 / 3,
    training: bool = False,
) -> Any:
    return slopes if training else torch.where(x > 0, 1.0, (lower + upper) / 2)


_SCALES: dict[str, Callable[..., Any]] = {
    "native_dropout.default": _of_dropout,
    "rrelu_with_noise_functional.default": _of_rrelu,
}
"""By operator the derivative of its first result by the tensor behind the key.

They are given that tensor, the second result, and the other arguments.
"""
