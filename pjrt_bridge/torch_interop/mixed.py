"""Running a graph that is split between the device and PyTorch.

Values cross as they are: a device segment hands on buffers, a host segment tensors, and each takes
what it gets as its own kind, over the same memory where the plugin uses host memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from pjrt_bridge.mixed.program import MixedProgram, Runner
from pjrt_bridge.torch_interop.segments import tensor_of
from pjrt_bridge.torch_interop.split import Split


class HostSegment:
    """A graph, or a part of one, that runs in PyTorch, operator by operator."""

    def __init__(self, module: fx.GraphModule) -> None:
        self._module = module

    def start(self, values: list[Any]) -> Sequence[Any]:
        """The outputs; empties the list. An operator's exception passes through unchanged."""
        given = [tensor_of(value) for value in values]
        values.clear()
        with torch.no_grad():
            results: Sequence[Any] = self._module.forward(*given)
        return results


class MixedGraph:
    """A whole ATen graph in parts.

    Args:
        parts: the split graph.
        runners: for each part what runs it.
    """

    def __init__(self, parts: Split, runners: Sequence[Runner]) -> None:
        self._program = MixedProgram(parts.graph, parts.segments, runners)
        self._outputs = parts.outputs
        self._mutations = parts.mutations

    def run(self, arguments: list[Any]) -> list[Any]:
        """The graph's outputs; empties the list of arguments (AOTAutograd's convention).

        Every result is waited for, so the arguments are the caller's own again.
        """
        given = list(arguments)
        arguments.clear()
        values = [tensor_of(value) for value in self._program.run(given)]
        with torch.no_grad():
            for position, index in self._mutations:
                given[position].copy_(values[index])
        return [values[item] if isinstance(item, int) else item[0] for item in self._outputs]
