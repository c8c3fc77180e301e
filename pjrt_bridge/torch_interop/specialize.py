"""Graphs with symbolic sizes: one compilation for each set of concrete sizes, in a bounded cache.

XLA programs have static shapes. A graph that Dynamo traced with symbolic sizes is traced again with
the sizes of a call, where they become numbers, and compiled; calls with the same sizes share that.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from pjrt_bridge.torch_interop import compat

Run = Callable[[list[Any]], Any]
"""Runs a compiled graph: takes the list of arguments and empties it."""

LIMIT = 64
"""Compiled sizes that are kept for one graph; the one that was not used longest goes first."""


def is_symbolic(graph: fx.Graph) -> bool:
    """Whether the graph's inputs have sizes, or are numbers, that differ from call to call."""
    inputs = (node for node in graph.nodes if node.op == "placeholder")
    return any(compat.is_symbolic(compat.promise(node)) for node in inputs)


class Specializer:
    """Runs a symbolic graph through compilations for concrete sizes.

    Args:
        compile: compiles the graph for the sizes of a list of arguments.

    Attributes:
        hits: calls that found their sizes compiled.
        compilations: calls that had to compile.
    """

    def __init__(self, compile: Callable[[list[Any]], Run]) -> None:
        self._compile = compile
        self._compiled: OrderedDict[tuple[Any, ...], Run] = OrderedDict()
        self._lock = threading.Lock()
        self.hits = 0
        self.compilations = 0

    def run(self, arguments: list[Any]) -> Any:
        """Run with the sizes of these arguments."""
        key = tuple(_size(argument) for argument in arguments)
        # Held while compiling: threads that come with the same new sizes compile once.
        with self._lock:
            found = self._compiled.get(key)
            if found is None:
                self.compilations += 1
                found = self._compile(arguments)
                self._compiled[key] = found
                if len(self._compiled) > LIMIT:
                    self._compiled.popitem(last=False)
            else:
                self.hits += 1
                self._compiled.move_to_end(key)
        return found(arguments)


def _size(argument: Any) -> Any:
    if isinstance(argument, torch.Tensor):
        return (tuple(argument.shape), argument.stride())
    # 1, 1.0 and True are equal but make different programs.
    return (type(argument), argument)
