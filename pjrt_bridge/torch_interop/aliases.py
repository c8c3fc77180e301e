"""Results of a graph that share memory: computed once, handed out as tensors over that memory.

A graph may return an intermediate together with views of it, or several views of one. A program's
results are arrays of their own; so only the intermediate is computed as a result, and the views are
made of it as torch promises them.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from pjrt_bridge.torch_interop import compat, nodes


@dataclass(frozen=True)
class View:
    """A result that lies in the memory of another.

    Attributes:
        base: index of the result that owns the memory.
        shape: of the view.
        strides: in elements.
        offset: of its first element, in elements.
    """

    base: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int


@dataclass(frozen=True)
class Shared:
    """A graph whose results share no memory, and what to make of them.

    Attributes:
        module: the graph.
        outputs: for each result of the original graph the index of one of these, or a view.
        strides: for each result with views, by index, its strides, in elements.
    """

    module: fx.GraphModule
    outputs: tuple[int | View, ...]
    strides: Mapping[int, tuple[int, ...]]

    def restore(self, results: Sequence[Any]) -> list[Any]:
        """The results of the original graph."""
        values = list(results)
        for index, strides in self.strides.items():
            # An operator of the user's may break the promise that its fake made.
            if values[index].stride() != strides:
                values[index] = _in_order(values[index], strides)
        return [
            values[item] if isinstance(item, int) else _view(values[item.base], item)
            for item in self.outputs
        ]


def share(module: fx.GraphModule) -> Shared | None:
    """Take results that are views of one intermediate out of a graph; None where there are none."""
    (end,) = (node for node in module.graph.nodes if node.op == "output")
    owners = _owners(module.graph)
    kept: dict[Any, int] = {}
    outputs: list[int | View] = []
    promises = {node: compat.promise(node) for node in end.args[0] if isinstance(node, fx.Node)}
    users: dict[fx.Node, set[fx.Node]] = {}
    for node, promise in promises.items():
        if (owner := owners.get(node)) is not None and promise.dtype == owner.meta["val"].dtype:
            users.setdefault(owner, set()).add(node)
    for position, node in enumerate(end.args[0]):
        owner = owners.get(node) if isinstance(node, fx.Node) else None
        if owner is None or owner is node or len(users.get(owner, ())) < 2:
            # What is no node is kept by its position: 1 and True are equal.
            key = node if isinstance(node, fx.Node) else position
            outputs.append(kept.setdefault(key, len(kept)))
            continue
        promise = promises[node]
        base = kept.setdefault(owner, len(kept))
        outputs.append(View(base, tuple(promise.shape), promise.stride(), promise.storage_offset()))
    if all(isinstance(item, int) for item in outputs):
        return None
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    graph.graph_copy(module.graph, copies)
    values = end.args[0]
    graph.output(tuple(copies[key] if isinstance(key, fx.Node) else values[key] for key in kept))
    for node in reversed(list(graph.nodes)):
        if not node.users and node.op == "call_function" and nodes.is_cheap(node):
            graph.erase_node(node)
    strides = {
        kept[owner]: owner.meta["val"].stride() for owner, views in users.items() if len(views) > 1
    }
    return Shared(fx.GraphModule(module, graph), tuple(outputs), strides)


def _owners(graph: fx.Graph) -> dict[fx.Node, fx.Node]:
    """For each node the one that made its memory, where that is all of a memory of the graph's."""
    owners: dict[fx.Node, fx.Node] = {}
    for node in graph.nodes:
        promise = compat.promise(node) if node.op == "call_function" else None
        if not isinstance(promise, torch.Tensor) or compat.is_symbolic(promise):
            continue
        storage = compat.storage_identity(promise)
        if storage is None:
            continue
        # Torch hands the fakes of one call of a subgraph out again for the next: that two fakes
        # share memory means something only between a view and what it is a view of.
        seen = _viewed(node)
        if seen is None:
            owner = node
        elif seen in owners and storage == compat.storage_identity(compat.promise(seen)):
            owner = owners[seen]
        else:
            continue
        made = compat.promise(owner)
        # These are not in the memory but in the view, and strides do not tell them.
        alike = (promise.is_conj(), promise.is_neg()) == (made.is_conj(), made.is_neg())
        if alike and _is_all(made):
            owners[node] = owner
    return owners


def _viewed(node: fx.Node) -> fx.Node | None:
    """What a node is a view of, if it is one."""
    source = node.args[0] if node.target is operator.getitem else node
    if not isinstance(source, fx.Node) or not isinstance(source.target, compat.OpOverload):
        return None
    if not source.target.is_view:
        return None
    seen = source.args[0]
    return seen if isinstance(seen, fx.Node) else None


def _is_all(promise: torch.Tensor) -> bool:
    """Whether a tensor is all of its memory, in whatever order."""
    return (
        promise.storage_offset() == 0
        and promise.numel() * promise.element_size() == promise.untyped_storage().nbytes()
        and promise.numel() > 0
        and 0 not in promise.stride()
    )


def _in_order(tensor: torch.Tensor, strides: tuple[int, ...]) -> torch.Tensor:
    made = torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype)
    return made.copy_(tensor)


def _view(base: torch.Tensor, view: View) -> torch.Tensor:
    # No view in autograd's sense, which would forbid the user to write into it.
    made = torch.empty(0, dtype=base.dtype)
    return made.set_(
        base.untyped_storage(), base.storage_offset() + view.offset, view.shape, view.strides
    )
