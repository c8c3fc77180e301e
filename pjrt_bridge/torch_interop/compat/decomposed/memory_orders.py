"""Operators whose results lie in another order in memory than torch's rules promise.

The rules keep the order of the argument, whatever it is. PyTorch's kernels write contiguous
results, and some of them `channels_last` ones, so that the result for a transposed argument is
contiguous. Here such an argument is copied into the order of the result first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch._prims_common import suggest_memory_format

from pjrt_bridge.torch_interop.compat.operators import operator

FormatRule = Callable[[Tensor], torch.memory_format]
"""The order of a result for an argument."""


def _contiguous(_: Tensor) -> torch.memory_format:
    return torch.contiguous_format


_ORDERS: Mapping[str, tuple[FormatRule, tuple[int, ...]]] = {
    "_batch_norm_with_update.default": (suggest_memory_format, (0,)),
    "_batch_norm_with_update_functional.default": (suggest_memory_format, (0,)),
    "_native_batch_norm_legit.default": (suggest_memory_format, (0,)),
    "_native_batch_norm_legit.no_stats": (suggest_memory_format, (0,)),
    "_native_batch_norm_legit_functional.default": (suggest_memory_format, (0,)),
    "_native_batch_norm_legit_no_training.default": (suggest_memory_format, (0,)),
    "log_sigmoid_forward.default": (_contiguous, (0,)),
    "native_batch_norm.default": (suggest_memory_format, (0,)),
    "native_batch_norm_backward.default": (suggest_memory_format, (1, 0)),
    "normal.Tensor_Tensor": (_contiguous, (0, 1)),
    "normal.float_Tensor": (_contiguous, (1,)),
    "pow.Scalar": (_contiguous, (1,)),
}
"""By operator the rule of the order, and the positions of the arguments that are copied into it;
the first of these is the argument of the rule."""


def with_memory_orders(
    table: Mapping[Any, Callable[..., Any]],
) -> dict[Any, Callable[..., Any]]:
    """A table of decompositions by which results lie in memory as those of PyTorch do."""
    found = dict(table)
    for name, (order, places) in _ORDERS.items():
        op = operator(f"aten.{name}")
        if op is not None:
            found[op] = partial(_in_order, order, places, op, table.get(op))
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
