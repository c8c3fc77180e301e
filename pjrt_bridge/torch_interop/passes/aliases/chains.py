"""Results of a graph as chains of views."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from pjrt_bridge.torch_interop import compat

DETACH = "aten.detach.default"
"""What it gives shares the memory of what it is given, and is no view for autograd."""

_WHOLE = frozenset(
    f"aten.{name}"
    for name in (
        "_reshape_alias.default",
        "alias.default",
        "detach.default",
        "permute.default",
        "squeeze.default",
        "squeeze.dim",
        "squeeze.dims",
        "t.default",
        "transpose.int",
        "unsqueeze.default",
        "view.default",
        "view.dtype",
        "view_as_complex.default",
        "view_as_real.default",
    )
)
"""Views of all elements of a tensor: where nothing else has its memory, the view may own it."""

_PARTS = frozenset({"aten.select.int", "aten.slice.Tensor"})
"""Views of different elements of a tensor: of all, where they are as many."""


@dataclass(frozen=True)
class Chain:
    """A result as a view of a root, by the operators between them; none for the root itself."""

    root: fx.Node
    views: tuple[fx.Node, ...]

    @property
    def last(self) -> fx.Node:
        """The result itself."""
        return self.views[-1] if self.views else self.root

    @property
    def detached(self) -> int:
        """After how many of its views it is detached from the root for the last time; 0: never."""
        names = [compat.operator_name(node.target) for node in self.views]
        return len(names) - names[::-1].index(DETACH) if DETACH in names else 0

    @property
    def whole(self) -> bool:
        """Whether the result has each element of the root once."""
        return all(map(_is_whole, self.views))

    @property
    def has_place(self) -> bool:
        """Whether it is known where in the memory of the root the result lies."""
        root, view = compat.promise(self.root), compat.promise(self.last)
        if any(compat.is_symbolic(promise) for promise in (root, view)):
            return False
        bits = (root.is_conj(), root.is_neg(), view.is_conj(), view.is_neg())
        return not any(bits) and root.storage_offset() == 0


def _is_whole(view: fx.Node) -> bool:
    """Whether a view has each element of what it views once."""
    name = compat.operator_name(view.target)
    if name not in _PARTS:
        return name in _WHOLE
    counts = [compat.promise(node).numel() for node in (view, *view.all_input_nodes[:1])]
    return all(isinstance(count, int) for count in counts) and counts[0] == counts[1]


def chain_of(node: fx.Node) -> Chain:
    """A result of a functional graph as a view of what made its memory."""
    views: tuple[fx.Node, ...] = ()
    while True:
        steps = (node.args[0], node) if node.target is operator.getitem else (node,)
        viewed = _viewed_by(steps)
        if viewed is None:
            return Chain(node, views)
        node, views = viewed, (*steps, *views)


def _viewed_by(steps: Sequence[Any]) -> fx.Node | None:
    """What an operator, with the `getitem` of one of its results, views; None where it does not."""
    source, view = steps[0], steps[-1]
    if not isinstance(source, fx.Node) or not isinstance(source.target, compat.OpOverload):
        return None
    viewed = source.args[0] if source.target.is_view else None
    if not isinstance(viewed, fx.Node):
        return None
    promises = compat.promise(viewed), compat.promise(view)
    if not all(isinstance(promise, torch.Tensor) for promise in promises):
        return None
    # Torch reuses the fakes of one call of a subgraph for the next call of it, so the identity of
    # their storages is compared only between a view and its base.
    identity = compat.storage_identity(promises[0])
    shares = identity is not None and identity == compat.storage_identity(promises[1])
    return viewed if shares else None
