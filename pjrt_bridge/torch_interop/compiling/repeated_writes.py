"""Writes that functionalization gets wrong, in graphs of Dynamo: PyTorch has to run these graphs.

Functionalization (torch 2.13) gives other values for them, or raises. There are writes through a
view in which memory repeats, and writes into the tensors of a list, some of which share memory. It
also writes zeros into what is in no window of `unfold` where windows are written into.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import fx

from pjrt_bridge.report.fallback_reason import FallbackReason
from pjrt_bridge.torch_interop import compat, nodes
from pjrt_bridge.torch_interop.repeated_memory import repeats, share_memory, views_of

_IN_PLACE = frozenset(
    getattr(operator, name)
    for name in (
        "iadd",
        "iand",
        "ifloordiv",
        "ilshift",
        "imatmul",
        "imod",
        "imul",
        "ior",
        "ipow",
        "irshift",
        "isub",
        "itruediv",
        "ixor",
        "setitem",
    )
)


def repeated_write(graph: fx.GraphModule) -> FallbackReason | None:
    """The first of these writes, as a reason."""
    for module in graph.modules():
        for node in module.graph.nodes if isinstance(module, fx.GraphModule) else ():
            written = _written(node)
            if any(map(_is_repeated, written)):
                return _reason(node, _REPEATED)
            if any(map(_is_of_windows, written)):
                return _reason(node, _OF_WINDOWS)
            if len(written) > 1 and _is_in_turn(node):
                return _reason(node, _IN_TURN)
    return None


_REPEATED = (
    "it writes through a view in which several elements lie in one place, such as expand gives; "
    "clone() the view before, or write into what it was made of"
)

_OF_WINDOWS = (
    "it writes through windows of unfold, which may leave out elements; write into a slice of "
    "what it was made of"
)

_IN_TURN = (
    "it writes into the tensors of a list in turn, and one of them shares memory with another one; "
    "write into each of them by an operator of its own"
)


def _reason(node: fx.Node, text: str) -> FallbackReason:
    name = compat.label(node.target) if node.op == "call_function" else str(node.target)
    return FallbackReason(name, text, "refused", nodes.source_line(node))


def _is_in_turn(node: fx.Node) -> bool:
    """Whether what is written first is read, or written over, for a later tensor of the lists."""
    lists = [
        item for item in (*node.args, *node.kwargs.values()) if isinstance(item, (list, tuple))
    ]
    return any(
        at < place and share_memory(_value(one), _value(other))
        for at, one in _placed(lists[:1])
        for place, other in _placed(lists)
    )


def _placed(lists: Sequence[Sequence[Any]]) -> list[tuple[int, fx.Node]]:
    """The nodes in some lists, with their places there."""
    return [(at, one) for item in lists for at, one in enumerate(item) if isinstance(one, fx.Node)]


def _is_repeated(node: fx.Node) -> bool:
    return any(repeats(_value(view)) for view in views_of(node, _value))


def _is_of_windows(node: fx.Node) -> bool:
    """Whether a tensor is a view of windows, in none of which some elements may be."""
    views = views_of(node, _value)
    for base, view in pairwise(views):
        name = view.target if isinstance(view.target, str) else compat.label(view.target)
        if "unfold" in name.split("."):
            sizes = (*_value(base).shape, *_value(view).shape)
            known = all(isinstance(size, int) for size in sizes)
            if not known or _value(view).numel() < _value(base).numel():
                return True
    return False


def _value(node: fx.Node) -> Any:
    return node.meta.get("example_value")


def _written(node: fx.Node) -> list[fx.Node]:
    """The tensors that a node writes into."""
    if node.op not in ("call_function", "call_method"):
        return []
    written = [node.kwargs.get("out")]
    if _writes_into_first(node):
        written.append(node.args[0] if node.args else node.kwargs.get("input"))
    return [item for item in compat.tree_leaves(written) if isinstance(item, fx.Node)]


def _writes_into_first(node: fx.Node) -> bool:
    """Whether it writes into its first argument, by its name or by what it is told."""
    if isinstance(node.target, compat.OpOverload):
        return node.target._schema.is_mutable and torch.Tag.inplace_view not in node.target.tags
    if node.target in _IN_PLACE or node.target == "__setitem__":
        return True
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    if name.endswith("_") and not name.endswith("__"):
        return name not in _OF_METADATA
    return node.op == "call_function" and _is_told_to(node)


def _is_told_to(node: fx.Node) -> bool:
    """Whether a function has an argument `inplace` that is true."""
    if getattr(node.target, "__module__", "") != torch.nn.functional.__name__:
        return bool(node.kwargs.get("inplace"))
    try:
        given = inspect.signature(node.target).bind(*node.args, **node.kwargs)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return bool(node.kwargs.get("inplace"))
    return bool(given.arguments.get("inplace"))


_OF_METADATA = frozenset(
    (
        "detach_",
        "requires_grad_",
        "squeeze_",
        "swapaxes_",
        "swapdims_",
        "t_",
        "transpose_",
        "unsqueeze_",
    )
)
"""They change what a tensor says of its memory, and not what is there."""
