"""Sizes of a call in the place of a graph's symbolic sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import fx

from pjrt_bridge.torch_interop import compat, nodes


def substitute_sizes(graph: fx.GraphModule, arguments: Sequence[Any]) -> fx.GraphModule:
    """A symbolic graph for arguments of the sizes of a call.

    Size computations are evaluated and replaced by their numbers. The other nodes are evaluated on
    fake tensors and keep their names and source lines. Sizes that depend on data stay symbols.
    Nothing is traced, because tracing blocks other threads that call compiled functions.

    Args:
        graph: with symbolic sizes; left as it is.
        arguments: of the call: tensors, whose sizes alone are read, and numbers.

    Raises:
        Exception: one of `compat.DATA_DEPENDENT`; the result of an operator depends on data.
    """
    made = fx.Graph()
    values: dict[fx.Node, Any] = {}
    copies: dict[fx.Node, Any] = {}
    # Outside of the fakes, which would look for the gradient of a tensor that has none.
    given = iter([x.detach() if isinstance(x, torch.Tensor) else x for x in arguments])
    with compat.fakes() as mode, torch.no_grad(), compat.without_autocast():
        for node in graph.graph.nodes:
            if node.op == "output":
                made.output(fx.map_arg(node.args[0], copies.__getitem__))
                continue
            if node.op == "placeholder":
                value = next(given)
                copies[node] = made.node_copy(node)
                if isinstance(value, torch.Tensor):
                    value = mode.from_tensor(value, static_shapes=True)
                    copies[node].meta["val"] = value
                elif compat.is_ragged(value):
                    # The variant also serves nested tensors of other ragged dimensions.
                    copies[node].meta["val"] = value
                else:
                    # The placeholder stays; its users get the number.
                    copies[node].meta["val"] = copies[node] = value
            elif node.op == "get_attr":
                value = compat.promise(node)
                copies[node] = made.node_copy(node)
            else:
                value = _evaluate(node, values)
                if _is_settled(node, value, values):
                    copies[node] = value
                else:
                    copies[node] = made.node_copy(node, copies.__getitem__)
                    copies[node].meta["val"] = value
            values[node] = value
    return fx.GraphModule(graph, made)


def _evaluate(node: fx.Node, values: Mapping[fx.Node, Any]) -> Any:
    promise = compat.promise(node)
    known = promise is not None and not compat.is_symbolic(promise)
    if known and isinstance(node.target, compat.HigherOrderOperator):
        # Some cannot be evaluated on fake tensors; a promise without symbols holds for all sizes.
        return promise
    args, kwargs = compat.substitute((node.args, node.kwargs), values)
    assert callable(node.target)
    return node.target(*args, **kwargs)


def _is_settled(node: fx.Node, value: Any, values: Mapping[fx.Node, Any]) -> bool:
    """Whether a node need not run any more: its result is a number, or it checked only numbers."""
    if nodes.is_check(node):
        return not any(compat.is_symbolic(values[used]) for used in node.all_input_nodes)
    return isinstance(value, (bool, int, float))
