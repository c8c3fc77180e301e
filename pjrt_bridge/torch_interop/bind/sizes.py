"""The sizes and numbers of a call of a symbolic graph, by which its variant is found."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import torch
from torch import fx

from pjrt_bridge.torch_interop import compat
from pjrt_bridge.torch_interop.named_device.naming import NAME


def is_symbolic(graph: fx.Graph) -> bool:
    """Whether the graph's inputs have sizes, or are numbers, that differ from call to call."""
    inputs = (node for node in graph.nodes if node.op == "placeholder")
    return any(compat.is_symbolic(compat.promise(node)) for node in inputs)


def sizes_of(arguments: Sequence[Any]) -> tuple[Any, ...]:
    """Shapes, strides and numbers of a call."""
    return tuple(map(_size, arguments))


def changes(old: Hashable, new: Hashable) -> str:
    """The differences between two calls, in words, without what padding appends to arguments."""
    assert isinstance(old, tuple)
    assert isinstance(new, tuple)
    found = [
        f"argument {index} became {_described(after)}, was {_described(before)}"
        for index, (before, after) in enumerate(zip(old, new, strict=False))
        if before != after
    ]
    more = f" and {len(found) - 3} more" if found[3:] else ""
    return "; ".join(found[:3]) + more


def stand_in(argument: Any) -> Any:
    """Something of the same sizes that does not hold the memory of a call's argument."""
    if not isinstance(argument, torch.Tensor):
        return argument
    # Its memory is never touched.
    return torch.empty_strided(
        argument.shape, argument.stride(), dtype=argument.dtype, device=argument.device
    )


def stands_for_itself(argument: Any) -> bool:
    """Whether nothing but its sizes tells an argument from a `stand_in`."""
    return not isinstance(argument, torch.Tensor) or (
        type(argument) in (torch.Tensor, torch.nn.Parameter)
        and argument.layout is torch.strided
        and argument.device.type in ("cpu", NAME)
        and not (argument.is_conj() or argument.is_neg())
    )


def _size(argument: Any) -> Any:
    if isinstance(argument, torch.Tensor):
        return (tuple(argument.shape), argument.stride())
    if compat.is_ragged(argument):
        # Each nested tensor has one of its own, and programs do not depend on it.
        return (torch.SymInt, None)
    # 1, 1.0 and True are equal but make different programs.
    return (type(argument), argument)


def _described(size: tuple[Any, Any]) -> str:
    shape, strides = size
    if isinstance(shape, type):
        return repr(strides)
    return f"{list(shape)} (strides {list(strides)})"
