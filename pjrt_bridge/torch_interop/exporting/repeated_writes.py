"""Writes through views with repeated memory, in what torch.export traced.

Before:

    expand = aten.expand(x, [2, -1, -1]); fill_ = aten.fill_(expand, 3)

After:

    expand = aten.expand(x, [2, -1, -1]); fill_ = aten.fill_(x, 3)

A write into part of such a view becomes one into a copy of the part, whose elements are then put
where they belong: the same views of the elements' numbers say where.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx
from torch.export import ExportedProgram

from pjrt_bridge.errors import NotExportable
from pjrt_bridge.torch_interop import compat, nodes
from pjrt_bridge.torch_interop.compat import OpOverload
from pjrt_bridge.torch_interop.repeated_memory import before_repeats, repeats, views_of

_UNIFORM = ("aten.fill_.Scalar", "aten.zero_.default")
"""They write one number into all elements, so that it does not matter how often each is written.

PyTorch refuses `fill_` with a tensor where memory repeats.
"""

_OF_ALL = frozenset(
    f"aten.{name}"
    for name in (
        "alias.default",
        "broadcast_to.default",
        "detach.default",
        "expand.default",
        "expand_as.default",
        "permute.default",
        "squeeze.default",
        "squeeze.dim",
        "squeeze.dims",
        "t.default",
        "transpose.int",
        "unsqueeze.default",
        "view.default",
    )
)
"""Views in which each element of a tensor is at least once, unless a size is 0."""


def without_repeated_writes(program: ExportedProgram) -> ExportedProgram:
    """The program with no write through a view with repeated memory; as it is if there is none.

    Raises:
        NotExportable: a write whose result depends on the order of its elements.
    """
    if not any(_writes(node) for node in program.graph.nodes):
        return program
    graph = fx.Graph()
    graph.output(graph.graph_copy(program.graph, {}))
    module = fx.GraphModule(program.graph_module, graph)
    for node in list(module.graph.nodes):
        for target in _writes(node):
            _rewrite(node, target)
    return compat.with_module(program, module)


def _writes(node: fx.Node) -> list[fx.Node]:
    """The tensors that a node writes into which are views with repeated memory, or of such."""
    if not _is_write(node) or torch.Tag.inplace_view in node.target.tags:  # type: ignore[union-attr]
        return []
    given = compat.bound_arguments(node)
    written = [
        given.get(item.name)
        for item in node.target._schema.arguments  # type: ignore[union-attr]
        if item.alias_info is not None and item.alias_info.is_write
    ]
    flat = [leaf for leaf in compat.tree_leaves(written) if isinstance(leaf, fx.Node)]
    chains = [views_of(item, compat.promise) for item in flat]
    found = [chain for chain in chains if before_repeats(chain, compat.promise) is not None]
    if any(sum(other[0] is chain[0] for other in chains) > 1 for chain in found):
        raise NotExportable(
            f"{nodes.label(node)} writes into a view with repeated memory and into other views of "
            f"its memory{_at(node)}; write into one after the other"
        )
    return [chain[-1] for chain in found]


def _rewrite(node: fx.Node, target: fx.Node) -> None:
    chain = views_of(target, compat.promise)
    at = before_repeats(chain, compat.promise)
    assert at is not None
    base, views = chain[at], [view for view in chain[at + 1 :] if not _is_write(view)]
    views = [step for view in views for step in _with_source(view)]
    uniform = str(node.target) in _UNIFORM
    if not uniform and repeats(compat.promise(target)):
        raise NotExportable(
            f"{nodes.label(node)} writes into a view in which several elements lie in one place: "
            f"what is left there depends on their order{_at(node)}; clone() the view before, or "
            "write into what it was made of"
        )
    is_empty = any(isinstance(size, int) and not size for size in compat.promise(target).shape)
    if uniform and not is_empty and all(str(view.target) in _OF_ALL for view in views):
        node.replace_all_uses_with(target)
        node.replace_input_with(target, base)
        return
    _write_into_a_copy(node, target, base, views)


def _is_write(node: fx.Node) -> bool:
    return isinstance(node.target, OpOverload) and node.target._schema.is_mutable


def _with_source(view: fx.Node) -> tuple[Any, ...]:
    """A view and, where it is one of several, what gives all of them."""
    return (view.args[0], view) if view.target is operator.getitem else (view,)


def _at(node: fx.Node) -> str:
    line = nodes.source_line(node)
    return f" ({line})" if line else ""


def _write_into_a_copy(node: fx.Node, target: fx.Node, base: fx.Node, views: list[fx.Node]) -> None:
    """Write into a copy of the view, and put its elements where they belong in the base."""
    whole = compat.promise(base)
    chain = (base, *views)
    if not all(_moves_elements(view, whole) for view in views) or any(map(_turns, chain)):
        raise NotExportable(
            f"{nodes.label(node)} writes into a view with repeated memory, whose elements lie "
            f"where cannot be told{_at(node)}; clone() the view before, or write into what it was "
            "made of"
        )
    aten = torch.ops.aten
    part = _NodeInserter(node).insert(
        aten.clone.default, target, memory_format=torch.contiguous_format
    )
    node.replace_all_uses_with(target)
    node.replace_input_with(target, part)
    call = _NodeInserter(node.next).insert
    sizes = [
        size if isinstance(size, int) else call(aten.sym_size.int, base, dim)
        for dim, size in enumerate(whole.shape)
    ]
    is_known = all(isinstance(size, int) for size in sizes)
    count = whole.numel() if is_known else call(aten.sym_numel.default, base)
    copies = {base: call(aten.view.default, call(aten.arange.default, count), sizes)}
    for view in views:
        args, kwargs = fx.map_arg((view.args, view.kwargs), lambda item: copies.get(item, item))
        copies[view] = call(view.target, *args, **kwargs)
    places = call(aten.reshape.default, copies[target], [-1])
    flat = call(aten.reshape.default, base, [-1])
    values = call(aten.reshape.default, part, [-1])
    new = call(aten.index_put.default, flat, [places], values)
    call(aten.copy_.default, base, call(aten.view.default, new, sizes))


class _NodeInserter:
    """Nodes with promises, in order before another one."""

    def __init__(self, before: fx.Node) -> None:
        self._before = before
        promises = map(compat.promise, before.graph.nodes)
        fakes = (item for item in promises if isinstance(item, compat.FakeTensor))
        self._mode = next(fakes).fake_mode

    def insert(self, op: Any, *args: Any, **kwargs: Any) -> fx.Node:
        graph = self._before.graph
        with graph.inserting_before(self._before):
            node = graph.call_function(op, args, kwargs)
        given, named = fx.map_arg((args, kwargs), compat.promise)
        with self._mode:
            node.meta["val"] = op(*given, **named)
        return node


def _turns(node: fx.Node) -> bool:
    """Whether an operator changes where a tensor's own elements lie, as `t_` does."""
    return any(
        isinstance(user.target, OpOverload) and torch.Tag.inplace_view in user.target.tags
        for user in node.users
    )


def _moves_elements(view: fx.Node, base: torch.Tensor) -> bool:
    """Whether a view has a tensor's elements as they are, by their places in it alone."""
    value = compat.promise(view)
    if isinstance(value, (tuple, list)):
        return all(item.dtype == base.dtype for item in value)
    if str(view.target) == "aten.as_strided.default":
        return not compat.is_symbolic(base) and base.is_contiguous() and not base.storage_offset()
    return (value.dtype, value.is_conj(), value.is_neg()) == (
        base.dtype,
        base.is_conj(),
        base.is_neg(),
    )
