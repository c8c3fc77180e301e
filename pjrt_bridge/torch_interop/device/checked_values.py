"""Calls that PyTorch refuses for the values of their tensors: the program fails for these.

What is traced takes the tensors as `pjrt_bridge::checked_range` gives them, which a compiler of the
device cannot leave out, and nobody waits for.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from pjrt_bridge.stablehlo.kernels import Kernels
from pjrt_bridge.torch_interop import compat
from pjrt_bridge.torch_interop.compat import OpOverload
from pjrt_bridge.torch_interop.passes.data_bounds import CHECKED_HITS, hits_of

_NAME = f"{compat.OWN_NAMESPACE}::checked_range"


def _checked(x: torch.Tensor, low: float, high: float, where: str, refusal: str) -> torch.Tensor:
    """Numbers as they are, where PyTorch runs the graph."""
    if not bool(((x >= low) & (x <= high)).all()):
        raise RuntimeError(f"{where}: {refusal}")
    return x.clone()


torch.library.define(_NAME, "(Tensor x, float low, float high, str where, str refusal) -> Tensor")
torch.library.impl(_NAME, "cpu", _checked)
torch.library.register_fake(_NAME, lambda x, *_: torch.empty_like(x))


def _with_hits(mask: torch.Tensor, count: int, where: str, refusal: str) -> torch.Tensor:
    """A mask as it is, where PyTorch runs the graph."""
    if int(mask.sum()) != count:
        raise RuntimeError(f"{where}: {refusal}")
    return mask.clone()


_WITH_HITS = CHECKED_HITS.removesuffix(".default").replace(".", "::")
torch.library.define(_WITH_HITS, "(Tensor mask, int count, str where, str refusal) -> Tensor")
torch.library.impl(_WITH_HITS, "cpu", _with_hits)
torch.library.register_fake(_WITH_HITS, lambda mask, *_: torch.empty_like(mask))

_WITH_MASKS = ("index_put_.default", "index_put.default")
"""Operators that write at the hits of a mask, by name."""


@dataclass(frozen=True)
class _Range:
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
_STD = _Range(1, 0, math.inf, "normal expects all elements of std >= 0.0")
_RANGES: dict[str, tuple[_Range, ...]] = {
    "bernoulli.default": (_Range(0, 0, 1, _PROBABILITY),),
    "bernoulli.out": (_Range(0, 0, 1, _PROBABILITY),),
    "bernoulli_.Tensor": (_Range(1, 0, 1, _PROBABILITY),),
    "binary_cross_entropy.default": tuple(
        _Range(at, 0, 1, f"all elements of {name} should be between 0 and 1")
        for at, name in enumerate(("input", "target"))
    ),
    "normal.Tensor_Tensor": (_STD,),
    "normal.float_Tensor": (_STD,),
}
"""For operators, by name, the values that PyTorch takes."""


def checked(op: OpOverload, args: Sequence[Any], kernels: Kernels) -> list[Any]:
    """The arguments of a call that is traced, with a check of their values.

    Args:
        op: the operator.
        args: positional arguments.
        kernels: that check; with others nothing changes.
    """
    found = list(args)
    if not kernels.can_check:
        return found
    if op.__name__ in _WITH_MASKS:
        source, indices, values, *_ = args
        if (hits := hits_of(source, indices, values)) is not None:
            place, count = hits
            text = f"shape mismatch: there are {count} values, and another number of True elements"
            operator = torch.ops.pjrt_bridge.checked_hits.default
            mask = operator(indices[place], count, str(op), text)
            found[1] = [*indices[:place], mask, *indices[place + 1 :]]
    operator = torch.ops.pjrt_bridge.checked_range.default
    for item in _RANGES.get(op.__name__, ()) if op.namespace == "aten" else ():
        value = found[item.position]
        if isinstance(value, torch.Tensor) and value.is_floating_point() and value.numel():
            found[item.position] = operator(value, item.low, item.high, str(op), item.refusal)
    return found
