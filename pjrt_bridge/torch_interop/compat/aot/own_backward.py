"""Results that are views, with a hook or a backward function of the user's on their way.

AOTAutograd makes a result anew, outside of the compiled function, where it is a view of an argument
or of another result: it repeats the view. Gradients then pass through that view alone. Where the
function has put something of its own between both, that is lost (torch 2.13, with every backend):

- `v = x.view(-1)`, `v.register_hook(hook)`: the hook of a view;
- a `torch.autograd.Function` that gives a view, as those do that reverse gradients
  (`forward`: `x.view_as(x)`, `backward`: `-gradient`). Torch knows those of an argument that are
  returned as they are, but not a view of one, nor one of a tensor that the function calculates.

Such results end here in an operator that AOTAutograd does not take for a view.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from operator import getitem
from typing import Any

import torch
from torch import Tensor, fx
from torch._ops import HigherOrderOperator

from pjrt_bridge.torch_interop.compat.promises.values import storage_identity

_HOOK = "register_hook"
_FUNCTION = "autograd_function_apply"


def keep_own_backward(module: fx.GraphModule) -> None:
    """Have AOTAutograd compute the gradients of such results as the function says.

    Args:
        module: from Dynamo; it is changed.
    """
    graph = module.graph
    views = _with_own_backward(graph)
    if not views:
        return
    given = {
        storage_identity(value)
        for value in map(_value, graph.find_nodes(op="placeholder"))
        if value is not None
    }
    (end,) = graph.find_nodes(op="output")
    values = map(_value, end.all_input_nodes)
    counts = Counter(storage_identity(value) for value in values if value is not None)

    def apart(node: fx.Node) -> fx.Node:
        value = _value(node)
        if node not in views or value is None or not value.requires_grad:
            return node
        storage = storage_identity(value)
        if storage in given:
            # Torch itself knows the result of a function that is returned as it is.
            make: Callable[[Tensor], Tensor] | None = None if _is_result(node) else _again
        else:
            make = _apart if counts[storage] > 1 else None
        if make is None:
            return node
        with graph.inserting_before(end):
            made = graph.call_function(make, (node,))
        made.meta = dict(node.meta)
        return made

    ends = {node: apart(node) for node in end.all_input_nodes}
    end.args = fx.map_arg(end.args, lambda node: ends[node])
    module.recompile()


def _with_own_backward(graph: fx.Graph) -> set[fx.Node]:
    """Views whose gradients pass through a hook or a function of the user's."""
    found: set[fx.Node] = set()
    for node in graph.nodes:
        value = _value(node)
        if value is None or not value._is_view():
            continue
        if _is_higher_order(node, _HOOK) or _is_result(node):
            found.add(node)
            continue
        sources = (_value(one) for one in node.all_input_nodes if one in found)
        storages = {storage_identity(one) for one in sources if one is not None}
        if storage_identity(value) in storages:
            found.add(node)
    return found


def _value(node: fx.Node) -> Tensor | None:
    value = node.meta.get("example_value")
    return value if isinstance(value, Tensor) and value.layout is torch.strided else None


def _is_result(node: fx.Node) -> bool:
    """Whether a node is a result of a `torch.autograd.Function`."""
    source = node.args[0] if node.target is getitem and node.args else None
    return isinstance(source, fx.Node) and _is_higher_order(source, _FUNCTION)


def _is_higher_order(node: fx.Node, name: str) -> bool:
    target: Any = node.target
    return isinstance(target, HigherOrderOperator) and str(target) == name


class _Again(torch.autograd.Function):
    """A view of all of a tensor; AOTAutograd repeats no view that a function makes."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient


def _again(view: Tensor) -> Tensor:
    made: Tensor = _Again.apply(view)  # type: ignore[no-untyped-call]
    return made


def _apart(view: Tensor) -> Tensor:
    """The same elements, as a tensor that autograd does not know as a view."""
    made: Tensor = torch.ops.aten._unsafe_view.default(view, view.shape)
    return made
