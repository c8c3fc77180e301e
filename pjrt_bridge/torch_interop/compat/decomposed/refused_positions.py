"""Positions that operators refuse in words of their own.

Where a program finds a position out of range, PyTorch computes its graph on the host, and raises.
What an operator is decomposed into, such as a `gather`, raises another error than the operator
does. So the positions are traced as `pjrt_bridge::positions` gives them, which raises that of the
operator, and of which a program has nothing but a check.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

from pjrt_bridge.torch_interop.compat.operators import OWN_NAMESPACE, by_operator

POSITIONS = f"{OWN_NAMESPACE}.positions.default"
"""The operator that gives positions as they are, where an operator does not refuse them."""


@dataclass(frozen=True)
class _PositionRefusal:
    """An operator's error.

    Attributes:
        kind: its type.
        words: its text, with the position, and with the sizes among which there is no such one.
    """

    kind: type[Exception]
    words: str


_OF_CLASSES = "classes"
_OF_VOLUMES = "volumes"
_REFUSALS = {
    _OF_CLASSES: _PositionRefusal(IndexError, "Target {position} is out of bounds."),
    _OF_VOLUMES: _PositionRefusal(
        RuntimeError, "Found an invalid max index: {position} (output volumes are of size {sizes})"
    ),
}


def _positions(index: Tensor, sizes: Sequence[int], ignored: int | None, refusal: str) -> Tensor:
    """Positions as they are, where PyTorch runs the graph."""
    wrong = (index < 0) | (index >= math.prod(sizes))
    if ignored is not None:
        wrong &= index != ignored
    if wrong.any():
        found = _REFUSALS[refusal]
        text = "x".join(map(str, sizes))
        raise found.kind(found.words.format(position=int(index[wrong][0]), sizes=text))
    return index.clone()


_NAME = f"{OWN_NAMESPACE}::positions"
torch.library.define(_NAME, "(Tensor index, SymInt[] sizes, int? ignored, str refusal) -> Tensor")
torch.library.impl(_NAME, "CompositeExplicitAutograd", _positions)
torch.library.register_fake(_NAME, lambda index, *_: torch.empty_like(index))


def with_refused_positions(
    table: Mapping[OpOverload, Callable[..., Any]],
) -> dict[OpOverload, Callable[..., Any]]:
    """Decompositions, of which those of operators that refuse positions do so as these."""
    made: dict[str, Callable[..., Any]] = {
        "aten.nll_loss_forward.default": _loss,
        "aten.nll_loss2d_forward.default": _loss,
        "aten.max_unpool2d.default": _unpooled,
        "aten.max_unpool3d.default": _unpooled,
    }
    found = {op: partial(rule, table[op]) for op, rule in by_operator(made).items() if op in table}
    return {**table, **found}


def _loss(
    rule: Callable[..., Any],
    self: Tensor,
    target: Tensor,
    weight: Tensor | None,
    reduction: int,
    ignore_index: int,
) -> Any:
    classes = self.shape[0 if self.dim() < 2 else 1]
    named = _named(target, [classes], ignore_index, _OF_CLASSES)
    return rule(self, named, weight, reduction, ignore_index)


def _unpooled(
    rule: Callable[..., Any], self: Tensor, indices: Tensor, output_size: Any, *rest: Any
) -> Any:
    return rule(self, _named(indices, output_size, None, _OF_VOLUMES), output_size, *rest)


def _named(index: Tensor, sizes: Sequence[Any], ignored: int | None, refusal: str) -> Tensor:
    named: Tensor = torch.ops.pjrt_bridge.positions.default(index, sizes, ignored, refusal)
    return named
