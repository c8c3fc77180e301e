"""Graphs whose sizes differ from call to call: compiled for the sizes of calls, in a bounded cache.

XLA programs have static shapes. A graph with symbolic sizes is traced again with the sizes of a
call, where they become numbers, and compiled; calls with the same sizes share that. Compiling costs
more than many runs, so once a graph has seen several sizes, one that comes for the first time is
run by PyTorch, and compiled only when it comes again.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import torch
from torch import fx

from pjrt_bridge.torch_interop import compat

LIMIT = 64
"""Compiled sizes that are kept for one graph; the one that was not used longest goes first."""

EAGER = 8
"""Sizes that are compiled when they come for the first time."""

_Compiled = TypeVar("_Compiled")


def is_symbolic(graph: fx.Graph) -> bool:
    """Whether the graph's inputs have sizes, or are numbers, that differ from call to call."""
    inputs = (node for node in graph.nodes if node.op == "placeholder")
    return any(compat.is_symbolic(compat.promise(node)) for node in inputs)


class Specializer(Generic[_Compiled]):
    """A symbolic graph's compilations for concrete sizes.

    Args:
        compile: compiles the graph for the sizes of a list of arguments; it is told what differs
            from the arguments before, None for the first.
        uncompiled: runs any sizes, without compiling; None where every size has to be compiled.
    """

    def __init__(
        self,
        compile: Callable[[list[Any], str | None], _Compiled],
        uncompiled: _Compiled | None = None,
    ) -> None:
        self._compile = compile
        self._uncompiled = uncompiled
        self._compiled: OrderedDict[tuple[Any, ...], _Compiled] = OrderedDict()
        self._seen: OrderedDict[tuple[Any, ...], None] = OrderedDict()
        self._last: tuple[Any, ...] | None = None
        self._lock = threading.Lock()
        self._compilations = 0

    def find(self, arguments: list[Any]) -> _Compiled:
        """What runs arguments of these sizes."""
        key = tuple(_size(argument) for argument in arguments)
        # Held while compiling: threads that come with the same new sizes compile once.
        with self._lock:
            found = self._compiled.get(key)
            if found is not None:
                self._compiled.move_to_end(key)
                return found
            if self._uncompiled is not None and self._is_new(key):
                return self._uncompiled
            self._compilations += 1
            found = self._compile(arguments, self._trigger(key))
            self._last = key
            self._compiled[key] = found
            if len(self._compiled) > LIMIT:
                self._compiled.popitem(last=False)
            return found

    def _is_new(self, key: tuple[Any, ...]) -> bool:
        """Whether sizes come for the first time although many others came before."""
        if self._compilations < EAGER or key in self._seen:
            self._seen.pop(key, None)
            return False
        self._seen[key] = None
        if len(self._seen) > LIMIT:
            self._seen.popitem(last=False)
        return True

    def _trigger(self, key: tuple[Any, ...]) -> str | None:
        """What differs from the sizes that were compiled before."""
        if self._last is None:
            return None
        changes = [
            f"argument {index} became {_show(new)}, was {_show(old)}"
            for index, (old, new) in enumerate(zip(self._last, key, strict=True))
            if old != new
        ]
        more = f" and {len(changes) - 3} more" if changes[3:] else ""
        return "; ".join(changes[:3]) + more


def _size(argument: Any) -> Any:
    if isinstance(argument, torch.Tensor):
        return (tuple(argument.shape), argument.stride())
    if compat.is_ragged(argument):
        # Each nested tensor has one of its own, and programs do not depend on it.
        return (torch.SymInt, None)
    # 1, 1.0 and True are equal but make different programs.
    return (type(argument), argument)


def _show(size: tuple[Any, Any]) -> str:
    shape, strides = size
    if isinstance(shape, type):
        return repr(strides)
    return f"{list(shape)} (strides {list(strides)})"
