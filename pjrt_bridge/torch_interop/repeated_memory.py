"""Views with repeated memory, such as `expand` gives, in graphs that write into tensors.

Functionalization (torch 2.13) computes what such a write makes of the base as the base plus the sum
of all differences: it multiplies and rounds them.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from pjrt_bridge.runtime.transfers.apart import lie_apart
from pjrt_bridge.torch_interop import compat

ValueOf = Callable[[fx.Node], Any]
"""Gives the fake tensor, or the number, that tracing had for a node."""


def repeats(tensor: Any) -> bool:
    """Whether several elements of a fake tensor lie in one place, in a call of some sizes."""
    if not isinstance(tensor, torch.Tensor) or tensor.layout is not torch.strided:
        return False
    try:
        tensor = compat.stand_in(tensor)
    except ValueError:
        return any(isinstance(step, int) and step == 0 for step in tensor.stride())
    return not lie_apart(tensor.shape, tensor.stride())


def share_memory(one: Any, other: Any) -> bool:
    """Whether two tensors, fake or not, may have an element in one place.

    Of symbolic sizes only the memory is compared, and not which part of it each has.
    """
    if _identity(one) is None or _identity(one) != _identity(other):
        return False
    (start, stop), (begin, end) = _part(one), _part(other)
    known = all(isinstance(bound, int) for bound in (start, stop, begin, end))
    return not known or (start < end and begin < stop)


def _part(tensor: torch.Tensor) -> tuple[Any, Any]:
    """The first byte of a tensor in its storage, and the one behind the last."""
    start = tensor.storage_offset()
    sizes = zip(tensor.shape, tensor.stride(), strict=True)
    if any(isinstance(size, int) and size == 0 for size in tensor.shape):
        return start * tensor.itemsize, start * tensor.itemsize
    stop = start + 1 + sum((size - 1) * step for size, step in sizes)
    return start * tensor.itemsize, stop * tensor.itemsize


def views_of(node: fx.Node, value_of: ValueOf) -> list[fx.Node]:
    """A tensor as a chain of views: what made its memory, its views in order, the tensor itself."""
    found = [node]
    while (base := _viewed_by(found[-1], value_of)) is not None:
        found.append(base)
    return found[::-1]


def _viewed_by(node: fx.Node, value_of: ValueOf) -> fx.Node | None:
    """The argument whose memory a node gives."""
    identity = _identity(value_of(node))
    if identity is None:
        return None
    source = node.args[0] if node.target is operator.getitem else node
    for maker in (node, source):
        for given in maker.all_input_nodes if isinstance(maker, fx.Node) else ():
            if _identity(value_of(given)) == identity:
                return given
    return None


def _identity(value: Any) -> int | None:
    return compat.storage_identity(value) if isinstance(value, torch.Tensor) else None


def before_repeats(views: list[fx.Node], value_of: ValueOf) -> int | None:
    """Where in a chain of views the memory begins to repeat: the index of the view before it.

    None where it does not repeat, or repeats from the start.
    """
    repeated = [repeats(value_of(view)) for view in views]
    return None if repeated[0] or True not in repeated else repeated.index(True) - 1
