"""Operators whose results lie in another order in memory than torch's rules promise.

The rules keep the order of the argument, whatever it is. PyTorch's kernels write contiguous
results, and some of them `channels_last` ones, so that the result for a transposed argument is
contiguous. Here such an argument is copied into the order of the result first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch._prims_common import suggest_memory_format

from pjrt_bridge.torch_interop.compat.operators import operator
from pjrt_bridge.torch_interop.compat.promises.values import is_symbolic

FormatRule = Callable[[Tensor], torch.memory_format]
"""The order of a result for an argument."""


def _contiguous(_: Tensor) -> torch.memory_format:
    return torch.contiguous_format


def _of_angles(tensor: Tensor) -> torch.memory_format:
    return torch.contiguous_format if tensor.is_complex() else torch.preserve_format


_ORDERS: Mapping[str, tuple[FormatRule, tuple[int, ...]]] = {
    "_batch_norm_with_update.default": (suggest_memory_format, (0,)),
    "_batch_norm_with_update_functional.default": (suggest_memory_format, (0,)),
    "_native_batch_norm_legit.default": (suggest_memory_format, (0,)),
    "_native_batch_norm_legit.no_stats": (suggest_memory_format, (0,)),
    "_native_batch_norm_legit_functional.default": (suggest_memory_format, (0,)),
    "_native_batch_norm_legit_no_training.default": (suggest_memory_format, (0,)),
    "angle.default": (_of_angles, (0,)),
    "baddbmm.default": (_contiguous, (0,)),
    "log_sigmoid_forward.default": (_contiguous, (0,)),
    "native_batch_norm.default": (suggest_memory_format, (0,)),
    "native_batch_norm_backward.default": (suggest_memory_format, (1, 0)),
    "normal.Tensor_Tensor": (_contiguous, (0, 1)),
    "normal.float_Tensor": (_contiguous, (1,)),
    "pow.Scalar": (_contiguous, (1,)),
}
"""By operator the rule of the order, and the positions of the arguments that are copied into it;
the first of these is the argument of the rule."""

_REPEATING = (
    "copysign.Tensor",
    "div.Tensor_mode",
    "floor_divide.default",
    "heaviside.default",
    "logaddexp.default",
    "logaddexp2.default",
    "logical_and.default",
    "logical_or.default",
    "logical_xor.default",
)
"""Elementwise operators of two tensors whose rules give a contiguous result where one is repeated
along dimensions of the other, whatever the order of that."""


def with_memory_orders(
    table: Mapping[Any, Callable[..., Any]],
) -> dict[Any, Callable[..., Any]]:
    """A table of decompositions by which results lie in memory as those of PyTorch do."""
    found = dict(table)
    for name, (order, places) in _ORDERS.items():
        op = operator(f"aten.{name}")
        if op is not None:
            found[op] = partial(_in_order, order, places, op, table.get(op))
    for name in _REPEATING:
        op = operator(f"aten.{name}")
        if op is not None:
            found[op] = partial(_repeated, op, table.get(op))
    by_number = operator("aten.copysign.Scalar")
    if by_number is not None:
        found[by_number] = _copysign
    roll = torch.ops.aten.roll.default
    found[roll] = partial(_roll, table.get(roll))
    unpool = torch.ops.aten.max_unpool2d.default
    if unpool in table:
        found[unpool] = partial(_unpool, table[unpool])
    return found


def _in_order(
    order: FormatRule,
    places: tuple[int, ...],
    op: OpOverload,
    rule: Callable[..., Any] | None,
    *args: Any,
    **kwargs: Any,
) -> Any:
    given = list(args)
    wanted = order(args[places[0]])
    for place in places:
        if place < len(args):
            given[place] = args[place].contiguous(memory_format=wanted)
    if any(one is not other for one, other in zip(given, args, strict=True)):
        # This function is called again, with arguments that are in order.
        return op(*given, **kwargs)
    return NotImplemented if rule is None else rule(*args, **kwargs)


def _unpool(rule: Callable[..., Tensor], self: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """Its result is contiguous, or `channels_last`, whatever the order of the argument is."""
    return rule(self, *args, **kwargs).contiguous(memory_format=suggest_memory_format(self))


def _roll(
    rule: Callable[..., Any] | None, self: Tensor, shifts: Sequence[Any], dims: Sequence[int] = ()
) -> Any:
    """By a view, as torch's rule gives a contiguous result for a `channels_last` argument, too.

    PyTorch joins two parts along each dimension. Along one that is not moved a part is empty, and
    the result contiguous.
    """
    count = self.dim()
    if (
        len(shifts) == len(dims) != 0
        and not any(map(is_symbolic, shifts))
        and self.numel()
        and suggest_memory_format(self) != torch.contiguous_format
        and all(amount % self.shape[dim] for amount, dim in zip(shifts, dims, strict=True))
    ):
        order = [0, *range(2, count), 1]
        moved = torch.ops.aten.roll.default(
            self.permute(order), shifts, [order.index(dim % count) for dim in dims]
        )
        return moved.movedim(-1, 1)
    return NotImplemented if rule is None else rule(self, shifts, dims)


def _repeated(
    op: OpOverload, rule: Callable[..., Any] | None, first: Any, second: Any, **kwargs: Any
) -> Any:
    if isinstance(first, Tensor) and isinstance(second, Tensor) and first.shape != second.shape:
        shape = torch.broadcast_shapes(first.shape, second.shape)  # type: ignore[no-untyped-call]
        whole = first if first.shape == shape else second
        if whole.shape == shape and not whole.is_contiguous():
            given = [
                item if item is whole else _lying_as(item.expand(shape), whole)
                for item in (first, second)
            ]
            # This function is called again, with arguments of one shape.
            return op(*given, **kwargs)
    return NotImplemented if rule is None else rule(first, second, **kwargs)


def _lying_as(tensor: Tensor, other: Tensor) -> Tensor:
    """A copy in the order of another tensor of its shape."""
    order = sorted(range(other.dim()), key=other.stride, reverse=True)
    back = sorted(range(other.dim()), key=order.__getitem__)
    return tensor.permute(order).clone(memory_format=torch.contiguous_format).permute(back)


def _copysign(self: Tensor, other: Any) -> Tensor:
    """By the sign of a tensor: a rule of torch for numbers loses the order of the result."""
    found: Tensor = torch.ops.aten.copysign.Tensor(self, torch.full((), other, device=self.device))
    return found
