"""Nodes between the marks of a composite become one operation, or the marks are removed.

Before:

    begin = pjrt_composites.begin([x, y])
    sin = sin(x); mul = mul(sin, y)
    pjrt_composites.end(begin, [mul], '["my.op", 1, {}]', [], [], [])

After, where the target has the composite:

    pjrt_composite = pjrt_composite(graph, '["my.op", 1, {}]', x, y)
    mul = getitem(pjrt_composite, 0)

A composite within another one comes first. One whose values are read elsewhere, as gradients do,
cannot become one operation, and stays as its operators.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from pjrt_bridge import user_warnings
from pjrt_bridge.stablehlo.composites import Composite
from pjrt_bridge.torch_interop import compat
from pjrt_bridge.torch_interop.composites import BEGIN, CALL, END, OPERATORS, decoded, encoded
from pjrt_bridge.torch_interop.nodes import has_effect, label
from pjrt_bridge.torch_interop.passes.functionalize_rng import show_pure
from pjrt_bridge.torch_interop.randomness.operators import KEY


def collect_composites(module: fx.GraphModule, keeps: Callable[[Composite], bool]) -> None:
    """Make one operation of each marked composite that is kept, and remove all marks.

    Args:
        module: a functional graph, changed in place.
        keeps: says of a composite whether the target has it.

    Warns with a `BridgeWarning` of a user's composite that cannot become one operation.
    """
    for one in _with_nested(module):
        ends = _ends(one.graph)
        if ends:
            _remove_unread_results(one.graph)
        for end in ends:
            found = _composite(end)
            if keeps(found):
                _try_collect(one, end, found)
            _remove(end)
        if ends:
            one.recompile()


def remove_marks(module: fx.GraphModule, keeps: Callable[[Composite], bool]) -> None:
    """Remove the marks of composites that are not kept.

    Args:
        module: changed in place.
        keeps: see `collect_composites`.
    """
    for one in _with_nested(module):
        for end in _ends(one.graph):
            if not keeps(_composite(end)):
                _remove(end)


class _Inexpressible(Exception):
    """A composite that cannot become one operation."""


@dataclass(frozen=True)
class _Marked:
    """The nodes between two marks, which become one operation.

    Attributes:
        operands: the tensors that it is given, as they were passed.
        numbers: sizes from outside that it reads.
        nodes: that are computed in it.
        dependent: those of them that depend on an operand. What depends on none, such as a range of
            numbers, may be computed outside as well.
        results: what it gives.
    """

    operands: list[fx.Node]
    numbers: list[fx.Node]
    nodes: set[fx.Node]
    dependent: set[fx.Node]
    results: list[fx.Node]


def _with_nested(module: fx.GraphModule) -> list[fx.GraphModule]:
    """The graph and those that its higher-order operators have, the innermost first."""
    return [one for one in reversed(list(module.modules())) if isinstance(one, fx.GraphModule)]


def _ends(graph: fx.Graph) -> list[fx.Node]:
    target: Any = compat.operator(END)
    return [] if target is None else graph.find_nodes(op="call_function", target=target)


def _remove_unread_results(graph: fx.Graph) -> None:
    """Torch traces all results of an operator; one that nothing reads is no use of it."""
    for node in graph.find_nodes(op="call_function", target=operator.getitem):
        if not node.users:
            graph.erase_node(node)


def _composite(end: fx.Node) -> Composite:
    return decoded(*end.args[2:])  # type: ignore[arg-type]


def _remove(end: fx.Node) -> None:
    begin = end.args[0]
    end.graph.erase_node(end)
    if (
        isinstance(begin, fx.Node)
        and compat.operator_name(begin.target) == BEGIN
        and not begin.users
    ):
        begin.graph.erase_node(begin)


def _try_collect(module: fx.GraphModule, end: fx.Node, composite: Composite) -> None:
    try:
        _collect(module, end, composite)
    except _Inexpressible as reason:
        # Operators of PyTorch are marked by the exporter, wherever they are.
        if not composite.name.startswith(f"{OPERATORS}."):
            user_warnings.warn(
                f"composite {composite.name!r} stays as the operations that it is made of: {reason}"
            )


def _collect(module: fx.GraphModule, end: fx.Node, composite: Composite) -> None:
    region = _region(end)
    graph, name = module.graph, _unused_name(module)
    setattr(module, name, _inner(module, region))
    given = [*region.operands, *region.numbers]

    def outside(user: fx.Node) -> bool:
        return user is not end and user not in region.nodes

    with graph.inserting_before(end):
        held = graph.get_attr(name)
        call = graph.call_function(CALL, (held, encoded(composite), *given))
        call.meta = {**_traced(end), "val": tuple(map(compat.promise, region.results))}
        for index, result in enumerate(region.results):
            if result not in region.dependent:
                # An argument that is given back, or a constant of the function.
                continue
            item = graph.call_function(operator.getitem, (call, index))
            item.meta = {**_traced(result), "val": compat.promise(result)}
            result.replace_all_uses_with(item, outside)
    # Nothing reads what is computed in the operation now, but what is computed there again.
    end.update_arg(1, [])
    for node in reversed(list(graph.nodes)):
        if node in region.nodes and not node.users:
            graph.erase_node(node)


def _traced(node: fx.Node) -> dict[str, Any]:
    return {key: value for key, value in node.meta.items() if key != "val"}


def _unused_name(module: fx.GraphModule) -> str:
    index = 0
    while hasattr(module, f"composite_{index}"):
        index += 1
    return f"composite_{index}"


def _region(end: fx.Node) -> _Marked:
    begin, results = end.args[0], list(end.args[1])  # type: ignore[arg-type]
    if not isinstance(begin, fx.Node) or compat.operator_name(begin.target) != BEGIN:
        raise _Inexpressible("the graph was divided within it")
    operands = list(begin.args[0])  # type: ignore[arg-type]
    found: set[fx.Node] = set()
    numbers: dict[fx.Node, None] = {}
    pending = [item for item in results if item not in operands]
    while pending:
        node = pending.pop()
        if node in found or node in numbers:
            continue
        if not _is_tensor(node) and node.op != "get_attr":
            numbers[node] = None
            continue
        if node.op == "placeholder" or (node.op == "get_attr" and _is_tensor(node)):
            raise _Inexpressible(f"it reads the tensor {node.name!r}, which is no argument of it")
        if node.op == "call_function" and _has_effect(node):
            raise _Inexpressible(f"{label(node)} in it has an effect, or draws random numbers")
        found.add(node)
        pending += [item for item in node.all_input_nodes if item not in operands]
    positions = {node: at for at, node in enumerate(end.graph.nodes)}
    dependent: set[fx.Node] = set()
    for node in sorted(found, key=positions.__getitem__):
        if any(item in operands or item in dependent for item in node.all_input_nodes):
            dependent.add(node)
    region = _Marked(operands, list(numbers), found, dependent, results)
    for node in dependent:
        for user in node.users.keys() - found - {end}:
            if node not in results:
                reader = "gradients read" if user.op == "output" else f"{user.name!r} reads"
                raise _Inexpressible(f"{reader} {node.name!r}, which is computed in it")
            if positions[user] < positions[end]:
                raise _Inexpressible(f"{user.name!r} reads {node.name!r} before it ends")
    return region


def _has_effect(node: fx.Node) -> bool:
    return node.target is KEY or has_effect(node)


def _is_tensor(node: fx.Node) -> bool:
    """Whether a node's value is a tensor or several."""
    value = compat.promise(node)
    return isinstance(value, (tuple, list, torch.Tensor))


def _inner(module: fx.GraphModule, region: _Marked) -> fx.GraphModule:
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for index, node in enumerate([*region.operands, *region.numbers]):
        made = graph.placeholder(f"argument_{index}")
        made.meta["val"] = compat.promise(node)
        copies.setdefault(node, made)
    for node in module.graph.nodes:
        if node in region.nodes:
            copies[node] = graph.node_copy(node, copies.__getitem__)
    graph.output(tuple(copies[node] for node in region.results))
    show_pure(graph)
    return fx.GraphModule(module, graph)
