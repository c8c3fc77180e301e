"""Putting operators with keys in the place of ATen's random ones, and making arguments of keys."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from pjrt_bridge.torch_interop import compat
from pjrt_bridge.torch_interop.placement.refusals import refused
from pjrt_bridge.torch_interop.randomness.host import raise_as_eager
from pjrt_bridge.torch_interop.randomness.operators import KEY, counterpart, draw_keys, gives


def functionalize_rng(graph: fx.Graph, keep: Callable[[str], bool] = lambda _: False) -> None:
    """Replace the random operators of a graph; each has a key of its own, drawn at its begin.

    A joint graph has to be treated before it is divided: its backward part then gets the keys that
    the forward part has drawn, whatever is computed again.

    Args:
        graph: functional; changed in place.
        keep: says of an operator's name that it is to stay as it is.
    """
    count = 0
    for node in list(graph.nodes):
        name = compat.operator_name(node.target)
        if name is None or keep(name):
            continue
        made = counterpart(name)
        if made is None or not _can_be_drawn(node, name) or _refused(node):
            continue
        key = _key(graph, count)
        count += 1
        kwargs = {name: value for name, value in node.kwargs.items() if name != "generator"}
        with graph.inserting_before(node):
            drawn = graph.call_function(made, (key, *node.args), kwargs)
        drawn.meta = dict(node.meta)
        node.replace_all_uses_with(drawn)
        graph.erase_node(node)


def lift_keys(graph: fx.Graph) -> int:
    """Make arguments, behind the others, of the keys that a graph draws; how many there are.

    The graph is changed in place.
    """
    keys = [node for node in graph.nodes if node.target is KEY]
    for index, node in enumerate(keys):
        with graph.inserting_before(_first_computation(graph)):
            argument = graph.placeholder(f"random_key_{index}")
        argument.meta = dict(node.meta)
        node.replace_all_uses_with(argument)
        graph.erase_node(node)
    return len(keys)


@dataclass(frozen=True)
class DrawnKeys:
    """A graph that takes keys behind its other arguments.

    Attributes:
        module: the graph.
        count: how many keys are drawn in each call.
    """

    module: fx.GraphModule
    count: int

    def prologue(self, arguments: list[Any]) -> None:
        """Draw the keys of a call."""
        arguments.extend(draw_keys(self.count))

    def epilogue(self, state: None, outputs: list[Any]) -> list[Any]:
        """The results as they are."""
        return outputs


def _refused(node: fx.Node) -> bool:
    """Whether PyTorch's own operator raises: then it has to be the one that is called."""
    assert isinstance(node.target, compat.OpOverload)
    values = {used: compat.promise(used) for used in node.all_input_nodes}
    return refused(node.target, compat.substitute((node.args, node.kwargs), values))


def _key(graph: fx.Graph, index: int) -> fx.Node:
    with graph.inserting_before(_first_computation(graph)):
        key = graph.call_function(KEY, (index,))
    key.meta["val"] = compat.fake_scalar(graph, torch.int64)
    compat.save_for_backward(key)
    return key


def _first_computation(graph: fx.Graph) -> fx.Node:
    found: fx.Node = next(node for node in graph.nodes if node.op != "placeholder")
    return found


def _can_be_drawn(node: fx.Node, name: str) -> bool:
    """Whether the operator with a key does what this node would do.

    What eager refuses stays as it is, so that eager says why.
    """
    promises = {used: compat.promise(used) for used in node.all_input_nodes}
    taken = [item for item in promises.values() if isinstance(item, torch.Tensor)]
    promise = compat.promise(node)
    made = promise[0] if isinstance(promise, (tuple, list)) else promise
    aten = compat.operator(name)
    if node.kwargs.get("generator") is not None or not gives(name, made, taken):
        return False
    assert aten is not None
    args, kwargs = compat.substitute((node.args, node.kwargs), promises)
    try:
        with compat.real_tensors():
            raise_as_eager(aten, args, kwargs)
    except (RuntimeError, TypeError, ValueError):
        return False
    return True
