"""Calls that PyTorch refuses for how many values a mask selects: the program fails for these.

See `compat/value_ranges.py` for the values of tensors that operators refuse.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from pjrt_bridge.stablehlo.kernels import Kernels
from pjrt_bridge.torch_interop.compat import OpOverload
from pjrt_bridge.torch_interop.passes.data_bounds import hits_of


def checked(op: OpOverload, args: Sequence[Any], kernels: Kernels) -> list[Any]:
    """The arguments of a call that is traced, with checks of their values.

    Args:
        op: the operator.
        args: positional arguments.
        kernels: that check; with others nothing changes.
    """
    found = list(args)
    if kernels.can_check and op.namespace == "aten":
        for position, at, holds, refusal in _conditions(op.__name__, args):
            given = found[position]
            value = given if at is None else given[at]
            made = torch.ops.pjrt_bridge.checked(value, holds, str(op), refusal)
            found[position] = made if at is None else [*given[:at], made, *given[at + 1 :]]
    return found


def _conditions(
    name: str, args: Sequence[Any]
) -> Iterator[tuple[int, int | None, torch.Tensor, str]]:
    """What has to hold: position of an argument, place in it, the condition, what PyTorch says."""
    if name in ("index_put.default", "index_put_.default"):
        hits = hits_of(args[0], args[1], args[2])
        if hits is not None:
            at, count = hits
            text = f"shape mismatch: there are {count} values, and another number of hits"
            yield 1, at, args[1][at].sum() == count, text
    if name in ("masked_scatter.default", "masked_scatter_.default"):
        x, mask, source = args
        if mask.numel():
            shape = torch.broadcast_shapes(x.shape, mask.shape)  # type: ignore[no-untyped-call]
            each = shape.numel() // mask.numel()
            text = "Number of elements of source < number of ones in mask"
            yield 1, None, mask.sum() * each <= source.numel(), text
