"""Properties of a node of an ATen graph: whether it has effects, is cheap, depends on data."""

from __future__ import annotations

import operator
import os
import re
from collections.abc import Iterator
from typing import Any

import torch
from torch import fx

import pjrt_bridge
from pjrt_bridge.torch_interop import compat
from pjrt_bridge.torch_interop.compat import HigherOrderOperator, OpOverload
from pjrt_bridge.torch_interop.composites import CALL, decoded
from pjrt_bridge.torch_interop.foreign_functions import OPERATOR, label_of
from pjrt_bridge.torch_interop.randomness.operators import pure_counterpart

COPY_INTO_INPUT = "aten.copy_.default"
"""The one mutation in a functional graph: an input's new value, at the end of the graph."""

_INSERTED = "pjrt_bridge_inserted"
"""Key in the `meta` of nodes that stand for no call of the program."""

_CALLED = "original_aten"
"""Key in the `meta` of nodes under which torch puts the operator that it decomposed."""

_OF_EVERY_TYPE = ("aten.roll.default",)
"""Operators of which torch makes `index_select`, which has fewer types."""

_FRAME = re.compile(r'File "(?P<file>.+)", line (?P<line>\d+), in .+\n\s*(?P<code>.*)')
_LIBRARIES = tuple(
    os.path.dirname(file) + os.sep for file in (torch.__file__, pjrt_bridge.__file__)
)


def label(node: fx.Node) -> str:
    """The name of the operator that a node calls, for messages.

    An operator that writes into its arguments, which functionalization wraps, has its own name, and
    so have a foreign function and a composite.
    """
    if node.target is CALL:
        return decoded(str(node.args[1])).name
    wrapped = node.args[0] if node.args and isinstance(node.target, HigherOrderOperator) else None
    if isinstance(wrapped, OpOverload):
        return compat.label(wrapped)
    if compat.operator_name(node.target) == OPERATOR:
        return label_of(node.args[0])
    return compat.label(node.target)


def mark_inserted(node: fx.Node) -> None:
    """Say that a node stands for no call of the program; copies of it say so, too."""
    node.meta[_INSERTED] = True


def is_inserted(node: fx.Node) -> bool:
    """Whether the bridge needs a node, and the program does not call it.

    What PyTorch refuses is no error of the program there: a rule of padding needs the node, or the
    decomposition of an operator that PyTorch has for every element type.
    """
    return _INSERTED in node.meta or compat.operator_name(node.meta.get(_CALLED)) in _OF_EVERY_TYPE


def is_size_computation(node: fx.Node) -> bool:
    """Whether a node reads sizes of tensors or calculates with them: tracing leaves numbers."""
    if node.op != "call_function" or isinstance(node.target, HigherOrderOperator):
        return False
    name = compat.operator_name(node.target)
    if name is None:
        return isinstance(
            compat.promise(node), (int, float, torch.SymInt, torch.SymFloat, torch.SymBool)
        )
    return name.startswith(("aten.sym_", "aten._sym_"))


def is_check(node: fx.Node) -> bool:
    """Whether a node raises unless a condition on sizes or numbers holds."""
    return compat.operator_name(node.target) in (
        "aten._assert_scalar.default",
        "aten.sym_constrain_range.default",
        "aten.sym_constrain_range_for_size.default",
    )


def depends_on_data(node: fx.Node) -> bool:
    """Whether the shape or the number that a node gives depends on what its tensors hold."""
    tags = node.target.tags if isinstance(node.target, OpOverload) else ()
    return torch.Tag.dynamic_output_shape in tags or torch.Tag.data_dependent_output in tags


def nested_graphs(node: fx.Node) -> list[fx.Graph]:
    """The graphs that a higher-order operator is given as arguments."""
    if not isinstance(node.target, HigherOrderOperator):
        return []
    held = (compat.promise(item) for item in node.all_input_nodes if item.op == "get_attr")
    return [item.graph for item in held if isinstance(item, fx.GraphModule)]


def nodes_within(node: fx.Node) -> Iterator[fx.Node]:
    """The nodes of these graphs, and of those in them."""
    for graph in nested_graphs(node):
        for inner in graph.nodes:
            yield inner
            yield from nodes_within(inner)


EXCHANGING = ("_c10d_functional", "_c10d_functional_autograd", "_dtensor")
"""Namespaces of functional collective operations."""
# They are functional, but every process has to begin them in the same order.
_ORDERED = (*EXCHANGING, "c10d", "symm_mem")
_WAIT = "_c10d_functional.wait_tensor.default"


def waits(node: fx.Node) -> bool:
    """Whether a node waits for a collective operation that the node it reads has started."""
    return str(node.target) == _WAIT


def exchanges(node: fx.Node) -> bool:
    """Whether a node starts a collective operation of torch.distributed."""
    target = node.target
    return isinstance(target, OpOverload) and target.namespace in EXCHANGING and not waits(node)


def has_effect(node: fx.Node) -> bool:
    """Whether a node must keep its place among others of its kind.

    It draws random numbers, prints, mutates, speaks to other processes, or holds what may.
    """
    if isinstance(node.target, HigherOrderOperator):
        graphs = nested_graphs(node)
        return not graphs or any(has_effect(inner) for graph in graphs for inner in graph.nodes)
    # To wait has a place behind the start alone.
    if not isinstance(node.target, OpOverload) or waits(node) or is_without_dropout(node):
        return False
    return (
        torch.Tag.nondeterministic_seeded in node.target.tags
        or node.target.namespace in _ORDERED
        or node.is_impure()
    )


def is_without_dropout(node: fx.Node) -> bool:
    """Whether a node calls an operator with torch's tag of random ones that draws nothing."""
    return (
        pure_counterpart(node.target) is not None and not compat.bound_arguments(node)["dropout_p"]
    )


def is_cheap(node: fx.Node) -> bool:
    """Whether a node is a constant, a creator or a view: it costs less than moving its result."""
    if node.op == "get_attr" or is_size_computation(node):
        return True
    if not isinstance(node.target, OpOverload) or has_effect(node):
        return False
    return node.target.is_view or not node.all_input_nodes


def is_light(node: fx.Node) -> bool:
    """Whether a node is not worth a launch of its own: it is cheap, or computes scalars.

    A draw takes PyTorch longer than a launch, and so does an exchange.
    """
    namespace = node.target.namespace if isinstance(node.target, OpOverload) else ""
    if namespace == compat.OWN_NAMESPACE or namespace in EXCHANGING:
        return False
    used = [compat.promise(item) for item in node.all_input_nodes]
    return is_cheap(node) or all(map(_is_scalar, (compat.promise(node), *used)))


def _is_scalar(value: Any) -> bool:
    return not isinstance(value, torch.Tensor) or (
        not compat.is_symbolic(value) and value.numel() <= 1
    )


def split_products(graph: fx.Graph) -> None:
    """Write products of several sizes as products of two.

    AOTAutograd makes one call of `operator.mul` of them, which Python refuses, and of which
    generated code would keep two factors.
    """
    for node in graph.find_nodes(op="call_function", target=operator.mul):
        product, *factors = node.args
        for factor in factors[:-1]:
            with graph.inserting_before(node):
                partial = graph.call_function(operator.mul, (product, factor))
            partial.meta = {**node.meta, "val": _size(product) * _size(factor)}
            product = partial
        node.args = (product, factors[-1])


def _size(value: Any) -> Any:
    return compat.promise(value) if isinstance(value, fx.Node) else value


def is_mutation(node: fx.Node) -> bool:
    """Whether a node writes into an argument of its graph."""
    return compat.operator_name(node.target) == COPY_INTO_INPUT


def source_line(node: fx.Node) -> str | None:
    """The user's line that a node comes from, as `file:line: code`."""
    found = source_frame(node)
    return None if found is None else f"{found[0]}:{found[1]}: {found[2]}"


def label_with_line(node: fx.Node) -> str:
    """The name of the operator that a node calls, and the user's line, for messages."""
    line = source_line(node)
    return label(node) + (f" at {line}" if line else "")


def source_frame(node: fx.Node) -> tuple[str, int, str] | None:
    """File, line and code that a node comes from: the innermost frame outside of torch."""
    trace = compat.stack_trace(node)
    frames = list(_FRAME.finditer(trace)) if trace else []
    if not frames:
        return None
    # Code that torch has generated has no file; the bridge's own wraps foreign functions.
    own = [frame for frame in frames if not frame["file"].startswith((*_LIBRARIES, "<"))]
    last = (own or frames)[-1]
    return last["file"], int(last["line"]), last["code"].strip()


def computed(graph: fx.Graph, operator: OpOverload, *args: Any) -> fx.Node:
    """A new node, for the reason of the node that is its first argument, with its promise."""
    made = graph.call_function(operator, args)
    given = [compat.promise(item) if isinstance(item, fx.Node) else item for item in args]
    made.meta = {**args[0].meta, "val": operator(*given)}
    return made
