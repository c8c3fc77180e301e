"""Decomposition of `flex_attention`: scores, the user's functions of them, softmax, the product.

All scores are computed, as in eager; blocks of a mask that hide all of their scores save nothing.
"""

from __future__ import annotations

import operator
from collections.abc import Callable

import torch
from torch import fx

from pjrt_bridge.torch_interop import compat


def decompose_flex_attention(
    module: fx.GraphModule, keep: Callable[[str], bool]
) -> fx.GraphModule | None:
    """The graph with operators of ATen in the place of each call; None where there is none.

    Args:
        module: a functional graph with known sizes.
        keep: says of an operator's name that PyTorch is to run it.
    """
    calls = [node for node in module.graph.nodes if compat.is_flex_attention(node)]
    if not calls or keep(compat.label(calls[0].target)):
        return None
    graph = fx.Graph()
    values: dict[fx.Node, fx.Node] = {}
    graph.output(graph.graph_copy(module.graph, values))
    for call in calls:
        copy = values[call]
        inner, given = compat.flex_attention_operators(call, compat.decompositions(keep))
        with graph.inserting_before(copy):
            arguments = [values[item] for item in given]
            results = _inline(graph, inner, arguments, copy)
        for user in call.users:
            assert user.target is operator.getitem
            index = user.args[1]
            assert isinstance(index, int)
            result = results[index]
            # In the strides that torch has promised.
            result.meta["val"] = compat.promise(user)
            values[user].replace_all_uses_with(result)
            graph.erase_node(values[user])
            values[user] = result
        graph.erase_node(copy)
    return fx.GraphModule(module, graph)


def _inline(
    graph: fx.Graph, inner: fx.Graph, arguments: list[fx.Node], call: fx.Node
) -> list[fx.Node]:
    """Copy a graph to where another one is written; its results."""
    copies: dict[fx.Node, fx.Node] = {}
    supply = iter(arguments)
    for node in inner.nodes:
        if node.op == "placeholder":
            copies[node] = next(supply)
        elif node.op == "output":
            return [copies[item] for item in node.args[0]]
        elif node.op == "get_attr":
            copies[node] = _constant(graph, compat.promise(node))
        else:
            copies[node] = made = graph.node_copy(node, copies.__getitem__)
            if _has_number_for_tensor(made):
                # Under vmap torch writes a number where the operator takes a tensor.
                with graph.inserting_before(made):
                    number = _constant(graph, _tensor(made.args[0]))  # type: ignore[arg-type]
                made.update_arg(0, number)
            copies[node].meta.setdefault("stack_trace", compat.stack_trace(call))
    raise AssertionError("a graph without an output")


def _has_number_for_tensor(node: fx.Node) -> bool:
    """Whether the first argument is a number, and the operator takes a tensor there."""
    if not isinstance(node.target, compat.OpOverload) or not node.args:
        return False
    first = node.target._schema.arguments[0]
    return isinstance(node.args[0], (int, float)) and isinstance(first.type, torch.TensorType)


def _tensor(number: float) -> torch.Tensor:
    """A number as the tensor that it was."""
    wide = torch.float64 if isinstance(number, float) else None
    with compat.real_tensors():
        return torch.tensor(number, dtype=wide, device="cpu")


def _constant(graph: fx.Graph, number: torch.Tensor) -> fx.Node:
    """A number that eager's formula holds as a tensor."""
    assert number.dim() == 0
    with compat.real_tensors():
        value = number.item()
    made = graph.call_function(torch.ops.aten.full.default, ((), value), {"dtype": number.dtype})
    made.meta["val"] = compat.fake_scalar(graph, number.dtype)
    return made
