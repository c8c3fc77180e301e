"""Compiled ATen graphs: whole on the device, whole in PyTorch, or in parts.

Each has `run(arguments, outer)`: it gives the graph's outputs, empties the list of arguments
(AOTAutograd's convention), and waits before it returns, because arguments are shared with the
plugin and their owner may write to them next. `outer` is the call of a graph of which this one is a
segment.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch

from pjrt_bridge.mixed.program import Call, MixedProgram, Runner
from pjrt_bridge.torch_interop.aliases import Shared
from pjrt_bridge.torch_interop.records import GraphRecord, begin, end
from pjrt_bridge.torch_interop.segments import DeviceSegment, HostSegment, output, tensor_of
from pjrt_bridge.torch_interop.specialize import Specializer
from pjrt_bridge.torch_interop.split import Split


class CompiledGraph(Protocol):
    """A graph that can run."""

    def run(self, arguments: list[Any], outer: Call | None = None) -> Sequence[Any]:
        """The outputs; empties the list of arguments."""


class HostGraph:
    """A graph that runs in PyTorch."""

    def __init__(self, segment: HostSegment, record: GraphRecord) -> None:
        self._segment = segment
        self._record = record

    def run(self, arguments: list[Any], outer: Call | None = None) -> Sequence[Any]:
        """The outputs; empties the list of arguments."""
        call = begin(self._record, outer)
        with call.timing():
            outputs = self._segment.start(arguments, call)
        end(self._record, call)
        return outputs


class DeviceGraph:
    """A graph that is one program on the device.

    Args:
        segment: the program.
        host: the same graph in PyTorch, for when the device fails.
        record: of the graph.
    """

    def __init__(self, segment: DeviceSegment, host: HostSegment, record: GraphRecord) -> None:
        self._segment = segment
        self._host = host
        self._record = record

    def run(self, arguments: list[Any], outer: Call | None = None) -> Sequence[Any]:
        """The outputs; empties the list of arguments."""
        given = list(arguments)
        arguments.clear()
        call = begin(self._record, outer)
        with call.timing():
            results = self._segment.run(given, call)
            if results is None:
                outputs = self._host.start(given, call)
            else:
                emitted = self._segment.emitted
                if emitted.mutations:
                    with torch.no_grad():
                        for position, index in emitted.mutations:
                            given[position].copy_(results[index])
                outputs = [output(item, given, results) for item in emitted.outputs]
        end(self._record, call)
        return outputs


class MixedGraph:
    """A graph in parts.

    Args:
        parts: the split graph.
        runners: for each part what runs it.
        record: of the graph.
    """

    def __init__(self, parts: Split, runners: Sequence[Runner], record: GraphRecord) -> None:
        self._program = MixedProgram(parts.graph, parts.segments, runners)
        self._outputs = parts.outputs
        self._mutations = parts.mutations
        self._record = record

    def run(self, arguments: list[Any], outer: Call | None = None) -> Sequence[Any]:
        """The outputs; empties the list of arguments."""
        # The program drops arguments after their last use; those that are written into stay.
        written = [(arguments[position], index) for position, index in self._mutations]
        call = begin(self._record, outer)
        values = [tensor_of(value) for value in self._program.run(arguments, call)]
        if written:
            with torch.no_grad():
                for argument, index in written:
                    argument.copy_(values[index])
        end(self._record, call)
        return [values[item] if isinstance(item, int) else item[0] for item in self._outputs]


class SharingGraph:
    """A graph some of whose results lie in the memory of others.

    Args:
        graph: computes those that own their memory.
        shared: makes the others.
    """

    def __init__(self, graph: CompiledGraph, shared: Shared) -> None:
        self._graph = graph
        self._shared = shared

    def run(self, arguments: list[Any], outer: Call | None = None) -> Sequence[Any]:
        """The outputs; empties the list of arguments."""
        return self._shared.restore(self._graph.run(arguments, outer))


class SymbolicSegment:
    """A part of a graph whose sizes are known when it runs: compiled for the sizes that come."""

    def __init__(self, specializer: Specializer[CompiledGraph]) -> None:
        self._specializer = specializer

    def start(self, values: list[Any], call: Call) -> Sequence[Any]:
        """The outputs; empties the list."""
        tensors = [tensor_of(value) for value in values]
        values.clear()
        return self._specializer.find(tensors).run(tensors, call)
