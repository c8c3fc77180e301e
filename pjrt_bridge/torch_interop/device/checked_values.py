"""Calls that PyTorch refuses for the values of their tensors: the program fails for these.

What is traced takes a tensor as `pjrt_bridge::checked` gives it, which a compiler of the device
cannot leave out, and nobody waits for.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from pjrt_bridge.stablehlo.kernels import Kernels
from pjrt_bridge.torch_interop.compat import OpOverload
from pjrt_bridge.torch_interop.passes.data_bounds import CHECKED, hits_of


def _checked(x: torch.Tensor, holds: torch.Tensor, where: str, refusal: str) -> torch.Tensor:
    """A tensor as it is, where PyTorch runs the graph."""
    if not holds:
        raise RuntimeError(f"{where}: {refusal}")
    return x.clone()


_NAME = CHECKED.removesuffix(".default").replace(".", "::")
torch.library.define(_NAME, "(Tensor x, Tensor holds, str where, str refusal) -> Tensor")
torch.library.impl(_NAME, "cpu", _checked)
torch.library.register_fake(_NAME, lambda x, *_: torch.empty_like(x))


@dataclass(frozen=True)
class _ValueRange:
    """The values that an argument may have.

    Attributes:
        position: of the argument.
        low: the smallest value.
        high: the largest.
        refusal: what PyTorch says of others.
    """

    position: int
    low: float
    high: float
    refusal: str


_PROBABILITY = "Expected p_in >= 0 && p_in <= 1 to be true, but got false."
_STD = _ValueRange(1, 0, math.inf, "normal expects all elements of std >= 0.0")
_RANGES: dict[str, tuple[_ValueRange, ...]] = {
    "bernoulli.default": (_ValueRange(0, 0, 1, _PROBABILITY),),
    "bernoulli.out": (_ValueRange(0, 0, 1, _PROBABILITY),),
    "bernoulli_.Tensor": (_ValueRange(1, 0, 1, _PROBABILITY),),
    "binary_cross_entropy.default": tuple(
        _ValueRange(at, 0, 1, f"all elements of {name} should be between 0 and 1")
        for at, name in enumerate(("input", "target"))
    ),
    "normal.Tensor_Tensor": (_STD,),
    "normal.float_Tensor": (_STD,),
}
"""For operators, by name, the values that PyTorch takes."""


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
    for item in _RANGES.get(name, ()):
        value = args[item.position]
        if isinstance(value, torch.Tensor) and value.is_floating_point() and value.numel():
            # Both comparisons are False for NaN.
            within = ((value >= item.low) & (value <= item.high)).all()
            yield item.position, None, within, item.refusal
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
