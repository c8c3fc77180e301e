"""Random operators of ATen replaced by pure ones that take a key; keys become arguments."""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import fx

from pjrt_bridge.torch_interop import compat
from pjrt_bridge.torch_interop.named_device.naming import OWN_DEVICES
from pjrt_bridge.torch_interop.nodes import computed, is_without_dropout
from pjrt_bridge.torch_interop.randomness.host import raise_as_eager
from pjrt_bridge.torch_interop.randomness.operators import (
    KEY,
    counterpart,
    derived_keys,
    draw_keys,
    gives,
    of_pure_counterpart,
    pure_counterpart,
)

Refused = Callable[[compat.OpOverload, Any], bool]
"""Whether PyTorch refuses a call of an operator with (positional, keyword) arguments."""


def functionalize_rng(
    graph: fx.Graph,
    keep: Callable[[str], bool] = lambda _: False,
    refused: Refused = lambda *_: False,
    devices: Container[str] = OWN_DEVICES,
) -> None:
    """Replace the random operators of a graph; each has a key of its own, drawn at its begin.

    The keys are drawn at the start of the graph. A joint graph has to be rewritten before it is
    partitioned into forward and backward: the keys are then saved for backward, so that what is
    recomputed there is the same.

    Args:
        graph: functional; changed in place.
        keep: whether the operator of a name is not to be replaced.
        refused: calls that are kept, so that they raise what eager raises.
        devices: torch's types of those on which programs draw.
    """
    _hide_pure(graph)
    count = 0
    for node in list(graph.nodes):
        name = compat.operator_name(node.target)
        if name is None or keep(name):
            continue
        if name == "aten.native_dropout.default":
            _hand_on_empty(node)
        made = counterpart(name)
        if made is None or not _can_be_drawn(node, name, devices):
            continue
        assert isinstance(node.target, compat.OpOverload)
        values = {used: compat.promise(used) for used in node.all_input_nodes}
        if refused(node.target, compat.substitute((node.args, node.kwargs), values)):
            continue
        key = _key(graph, count)
        count += 1
        kwargs = {name: value for name, value in node.kwargs.items() if name != "generator"}
        with graph.inserting_before(node):
            args = _with_checked_values(graph, node)
            drawn = graph.call_function(made, (key, *args), kwargs)
        drawn.meta = dict(node.meta)
        node.replace_all_uses_with(drawn)
        graph.erase_node(node)


def _with_checked_values(graph: fx.Graph, node: fx.Node) -> list[Any]:
    """The positional arguments of a random operator, with checks of their values."""
    assert isinstance(node.target, compat.OpOverload)
    args = list(node.args)
    for item in compat.value_ranges(node.target):
        call = partial(computed, graph)
        args[item.position] = compat.checked_value(node.target, item, args[item.position], call)
    return args


def lift_keys(graph: fx.Graph) -> int:
    """Make arguments, behind the others, of the keys that a graph draws; how many there are.

    The graph is changed in place.
    """
    show_pure(graph)
    keys = [node for node in graph.nodes if node.target is KEY]
    for index, node in enumerate(keys):
        with graph.inserting_before(_first_computation(graph)):
            argument = graph.placeholder(f"random_key_{index}")
        argument.meta = dict(node.meta)
        node.replace_all_uses_with(argument)
        graph.erase_node(node)
    return len(keys)


def count_keys(graph: fx.Graph) -> int:
    """How many keys a graph draws."""
    return sum(node.target is KEY for node in graph.nodes)


def derive_keys(graph: fx.Graph, words: fx.Node) -> None:
    """Make functions of 64 random bits of the keys that a graph draws.

    The graph is changed in place, and may be differentiated and mapped then.

    Args:
        graph: of `functionalize_rng`.
        words: the argument that has the bits, as `derived_keys` takes them.
    """
    keys = [node for node in graph.nodes if node.target is KEY]
    if not keys:
        return
    made = compat.export_plain(
        lambda words: derived_keys(words, len(keys)), [compat.promise(words)]
    )
    (argument,) = made.graph.find_nodes(op="placeholder")
    with graph.inserting_before(_first_computation(graph)):
        found = graph.graph_copy(made.graph, {argument: words})
    assert isinstance(found, (list, tuple))
    for node, key in zip(keys, found, strict=True):
        node.replace_all_uses_with(key)
        graph.erase_node(node)


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


def _hide_pure(graph: fx.Graph) -> None:
    """Take torch's tag of random operators from calls without dropout; `show_pure` undoes it.

    In a joint graph, what has the tag and is computed again in backward would be given the state of
    a generator, by higher-order operators that no device runs.
    """
    for node in graph.nodes:
        if is_without_dropout(node):
            node.target = pure_counterpart(node.target)


def show_pure(graph: fx.Graph) -> None:
    """Give calls without dropout torch's own operators again, in place."""
    for node in graph.nodes:
        node.target = of_pure_counterpart(node.target) or node.target


def _key(graph: fx.Graph, index: int) -> fx.Node:
    with graph.inserting_before(_first_computation(graph)):
        key = graph.call_function(KEY, (index,))
    key.meta["val"] = compat.fake_scalar(graph, torch.int64)
    compat.save_for_backward(key)
    return key


def _first_computation(graph: fx.Graph) -> fx.Node:
    found: fx.Node = next(node for node in graph.nodes if node.op != "placeholder")
    return found


def _hand_on_empty(dropout: fx.Node) -> None:
    """Have dropout give an argument without elements as it is, the tensor itself, as eager does."""
    given = dropout.args[0]
    assert isinstance(given, fx.Node)
    if not any(isinstance(size, int) and not size for size in compat.promise(given).shape):
        return
    for user in list(dropout.users):
        if user.args[1] == 0:
            user.replace_all_uses_with(given)
            user.graph.erase_node(user)


def _can_be_drawn(node: fx.Node, name: str, devices: Container[str]) -> bool:
    """Whether the operator with a key gives the same kind of result as this node.

    False where eager raises, so that the call raises eager's error.
    """
    promises = {used: compat.promise(used) for used in node.all_input_nodes}
    taken = [item for item in promises.values() if isinstance(item, torch.Tensor)]
    promise = compat.promise(node)
    made = promise[0] if isinstance(promise, (tuple, list)) else promise
    aten = compat.operator(name)
    if node.kwargs.get("generator") is not None or not gives(name, made, taken, devices):
        return False
    assert aten is not None
    args, kwargs = compat.substitute((node.args, node.kwargs), promises)
    try:
        with compat.real_tensors():
            raise_as_eager(aten, args, kwargs)
    except (RuntimeError, TypeError, ValueError):
        return False
    return True
