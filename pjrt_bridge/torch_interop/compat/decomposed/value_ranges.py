"""Values that PyTorch's operators refuse, and tensors that are checked for them on the device.

What is traced takes a tensor as `pjrt_bridge::checked` gives it, which a compiler of the device
cannot leave out, and nobody waits for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch._ops import OpOverload

from pjrt_bridge.torch_interop.compat.operators import OWN_NAMESPACE

CHECKED = f"{OWN_NAMESPACE}.checked.default"
"""The operator that gives a tensor of which the program itself checks a condition."""


def _checked(x: torch.Tensor, holds: torch.Tensor, where: str, refusal: str) -> torch.Tensor:
    """A tensor as it is, where PyTorch runs the graph."""
    if not holds:
        raise RuntimeError(f"{where}: {refusal}")
    return x.clone()


_NAME = f"{OWN_NAMESPACE}::checked"
torch.library.define(
    _NAME,
    "(Tensor x, Tensor holds, str where, str refusal) -> Tensor",
    tags=(torch.Tag.pointwise,),
)
torch.library.impl(_NAME, "cpu", _checked)
torch.library.register_fake(_NAME, lambda x, *_: torch.empty_like(x))


@dataclass(frozen=True)
class ValueRange:
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
_STD = ValueRange(1, 0, math.inf, "normal expects all elements of std >= 0.0")
_RANGES: Mapping[str, tuple[ValueRange, ...]] = {
    "bernoulli.default": (ValueRange(0, 0, 1, _PROBABILITY),),
    "bernoulli.Tensor": (ValueRange(1, 0, 1, _PROBABILITY),),
    "binary_cross_entropy.default": tuple(
        ValueRange(at, 0, 1, f"all elements of {name} should be between 0 and 1")
        for at, name in enumerate(("input", "target"))
    ),
    "normal.Tensor_Tensor": (_STD,),
    "normal.float_Tensor": (_STD,),
}
"""For operators without effects, by name, the values that PyTorch takes."""


def value_ranges(op: OpOverload) -> tuple[ValueRange, ...]:
    """The values that an operator of ATen takes, for each argument of which it refuses some."""
    return _RANGES.get(op.__name__, ()) if op.namespace == "aten" else ()


def checked_value(op: OpOverload, item: ValueRange, value: Any, call: Callable[..., Any]) -> Any:
    """A tensor that the program checks.

    Args:
        op: the operator that takes it.
        item: the values that it takes.
        value: the tensor, or what stands for it in a graph.
        call: calls an operator with such tensors and numbers.
    """
    aten = torch.ops.aten
    # Both comparisons are False for NaN.
    above, below = call(aten.ge.Scalar, value, item.low), call(aten.le.Scalar, value, item.high)
    holds = call(aten.all.default, call(aten.logical_and.default, above, below))
    return call(torch.ops.pjrt_bridge.checked.default, value, holds, str(op), item.refusal)


def with_value_checks(
    table: Mapping[OpOverload, Callable[..., Any]],
) -> dict[OpOverload, Callable[..., Any]]:
    """Decompositions, of which those of operators that refuse values check these before."""
    return {
        op: partial(_of_checked, op, rule) if value_ranges(op) else rule
        for op, rule in table.items()
    }


def _of_checked(op: OpOverload, rule: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    found = list(args)
    for item in value_ranges(op):
        found[item.position] = checked_value(op, item, found[item.position], _call)
    return rule(*found, **kwargs)


def _call(op: OpOverload, *args: Any) -> Any:
    return op(*args)
