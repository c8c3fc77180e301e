"""Graphs of fx as they are called, and trees of arguments."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _pytree as pytree


def bound_arguments(node: fx.Node) -> dict[str, Any]:
    """The arguments of an operator's call by name, with defaults; none if it is no operator."""
    if not isinstance(node.target, OpOverload):
        return {}
    arguments = node.target._schema.arguments
    given = dict(zip((argument.name for argument in arguments), node.args, strict=False))
    defaults = {item.name: item.default_value for item in arguments if item.has_default_value()}
    return {**defaults, **given, **node.kwargs}


def stack_trace(node: fx.Node) -> str | None:
    """The user's Python stack where the node was traced."""
    trace = node.meta.get("stack_trace") or node.meta.get("fwd_stack_trace")
    return trace if isinstance(trace, str) else None


def graph_attribute(graph: Any, target: str) -> Any:
    """A tensor or module that a graph module holds by name."""
    value = graph
    for name in target.split("."):
        value = getattr(value, name)
    return value


def drop_traced_tokens(graph: fx.Graph) -> None:
    """Make None of results that are tensors of the tracing itself.

    Torch (2.13) traces the body of a `map` or `scan` once more to know its results. Where it has
    an effect, such as a check of linear algebra, the token of that tracing becomes a constant of
    the graph, which returns it; nothing reads it.
    """
    (output,) = graph.find_nodes(op="output")

    def kept(item: fx.Node) -> fx.Node | None:
        if item.op != "get_attr":
            return item
        assert isinstance(item.target, str)
        value = graph_attribute(graph.owning_module, item.target)
        return None if isinstance(value, FakeTensor) else item

    held = set(output.all_input_nodes)
    output.args = fx.map_arg(output.args, kept)
    for node in held - set(output.all_input_nodes):
        graph.erase_node(node)


def substitute(arguments: Any, values: Mapping[fx.Node, Any]) -> Any:
    """Arguments of a node with every node in them replaced by its value."""
    return fx.map_arg(arguments, lambda node: values[node])


def boxed_module(root: fx.GraphModule, graph: fx.Graph) -> Callable[[list[Any]], Any]:
    """A graph as a function of one list, which it empties: values are dropped after their use."""
    # Not at the top: export works with PyTorch 2.9, which does not have it.
    from torch.fx.graph import _BoxedCodeGen

    graph.set_codegen(_BoxedCodeGen())
    forward: Callable[[list[Any]], Any] = fx.GraphModule(root, graph).forward
    return forward


def tree_parts(spec: Any) -> tuple[Any, Any, list[Any]]:
    """Class, context and children of a node of a nesting; the class is None for a leaf."""
    if spec.is_leaf():
        return None, None, []
    children = spec.children() if hasattr(spec, "children") else spec.children_specs
    return spec.type, spec.context, list(children)


def flat_tree(count: int) -> Any:
    """The nesting of a tuple of so many leaves."""
    return pytree.tree_structure((0,) * count)


def flat_call(count: int) -> Any:
    """The nesting of a call with so many arguments by position."""
    return pytree.tree_structure(((0,) * count, {}))


def tree_leaves(tree: Any) -> list[Any]:
    """The leaves of nested lists, tuples, dicts and other containers that torch knows."""
    return pytree.tree_leaves(tree)


def leaves_of(outputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The tensors without a history that gradients of these outputs flow to."""
    found, seen, waiting = [], set(), [output.grad_fn for output in outputs]
    while waiting:
        function = waiting.pop()
        if function is not None and function not in seen:
            seen.add(function)
            waiting += [before for before, _ in function.next_functions]
            if hasattr(function, "variable"):
                found.append(function.variable)
    return found
