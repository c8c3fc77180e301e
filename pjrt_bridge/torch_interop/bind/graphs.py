"""Compiled ATen graphs: whole on the device, whole in PyTorch, or in parts.

Each has `run(arguments, call)`: it gives the graph's outputs, empties the list of arguments
(AOTAutograd's convention), and waits before it returns, because arguments are shared with the
plugin and their owner may write to them next.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch

from pjrt_bridge.mixed.launch import tensor_of
from pjrt_bridge.mixed.program import Call, MixedProgram, Runner
from pjrt_bridge.mixed.records import GraphRecord, begin, end
from pjrt_bridge.torch_interop.bind.segments import DeviceSegment, HostSegment
from pjrt_bridge.torch_interop.bind.shortcut import Shortcut
from pjrt_bridge.torch_interop.bind.specialize import Specializer
from pjrt_bridge.torch_interop.passes.aliases import with_strides
from pjrt_bridge.torch_interop.passes.padding import Padding
from pjrt_bridge.torch_interop.placement.split import Split


class CompiledGraph(Protocol):
    """A graph that can run."""

    @property
    def record(self) -> GraphRecord:
        """What is known of it."""

    def run(self, arguments: list[Any], call: Call) -> Sequence[Any]:
        """The outputs; empties the list of arguments."""


def run(graph: CompiledGraph, arguments: list[Any], outer: Call | None = None) -> Sequence[Any]:
    """Run a graph, and record the call: on its own, or as a segment of a graph that is called."""
    call = begin(graph.record, outer)
    outputs = graph.run(arguments, call)
    end(graph.record, call)
    return outputs


class HostGraph:
    """A graph that runs in PyTorch."""

    def __init__(self, segment: HostSegment, record: GraphRecord) -> None:
        self._segment = segment
        self.record = record

    def run(self, arguments: list[Any], call: Call) -> Sequence[Any]:
        """The outputs; empties the list of arguments."""
        return call.run(self._segment.start, arguments)


class DeviceGraph:
    """A graph that is one program on the device.

    Args:
        segment: the program.
        record: of the graph.
    """

    def __init__(self, segment: DeviceSegment, record: GraphRecord) -> None:
        self._segment = segment
        self.record = record

    def shortcut(self) -> Shortcut | None:
        """A way for calls that go as the call before; None where there is none."""
        shortcut = self._segment.shortcut()
        if shortcut is not None:
            self.record.follow(shortcut.last)
        return shortcut

    def run(self, arguments: list[Any], call: Call) -> Sequence[Any]:
        """The outputs; empties the list of arguments."""
        given = list(arguments)
        arguments.clear()
        return call.run(self._run, given)

    def _run(self, given: list[Any], call: Call) -> Sequence[Any]:
        results = self._segment.run(given, call)
        if results is None:
            return self._segment.instead(given, call)
        for position, index in self._segment.emitted.mutations:
            update(given[position], results[index])
        return self._segment.outputs(given, results)


def update(argument: torch.Tensor, value: torch.Tensor) -> None:
    """Give an argument its new value, which the program may have written to its memory already."""
    if argument.data_ptr() == value.data_ptr():
        # Tensors of inference mode count no versions.
        if not argument.is_inference():
            torch.autograd.graph.increment_version(argument)
    else:
        with torch.no_grad():
            argument.copy_(value)


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
        self.record = record

    def run(self, arguments: list[Any], call: Call) -> Sequence[Any]:
        """The outputs; empties the list of arguments."""
        # The program drops arguments after their last use; those that are written into stay.
        written = [(arguments[position], index) for position, index in self._mutations]
        values = [tensor_of(value) for value in self._program.run(arguments, call)]
        if written:
            with torch.no_grad():
                for argument, index in written:
                    argument.copy_(values[index])
        return [values[item] if isinstance(item, int) else item[0] for item in self._outputs]


class StridedGraph:
    """A graph some of whose results are to lie in memory with gaps.

    Args:
        graph: gives them without gaps.
        strides: of these results, by position.
    """

    def __init__(self, graph: CompiledGraph, strides: Mapping[int, Sequence[int]]) -> None:
        self._graph = graph
        self._strides = strides
        self.record = graph.record

    def run(self, arguments: list[Any], call: Call) -> Sequence[Any]:
        """The outputs; empties the list of arguments."""
        outputs = list(self._graph.run(arguments, call))
        for position, strides in self._strides.items():
            outputs[position] = with_strides(outputs[position], strides)
        return outputs


class CheckedGraph:
    """A graph whose values are looked at when they are there.

    Args:
        graph: gives what the checks look at after its results.
        checks: takes that, and raises what an assertion of the user's raises.
        results: how many results there are.
    """

    def __init__(self, graph: CompiledGraph, checks: HostSegment, results: int) -> None:
        self._graph = graph
        self._checks = checks
        self._results = results
        self.record = graph.record

    def run(self, arguments: list[Any], call: Call) -> Sequence[Any]:
        """The outputs; empties the list of arguments."""
        outputs = list(self._graph.run(arguments, call))
        looked_at = outputs[self._results :]
        del outputs[self._results :]
        self._checks.start(looked_at, call)
        return outputs


class SymbolicGraph:
    """A graph whose sizes are known when it runs: compiled for the sizes that come.

    Args:
        specializer: compiles it.
        padding: pads sizes, so that fewer come.
    """

    def __init__(
        self, specializer: Specializer[CompiledGraph], padding: Padding | None = None
    ) -> None:
        self._specializer = specializer
        self._padding = padding

    def run(self, arguments: list[Any], outer: Call | None = None) -> Sequence[Any]:
        """The outputs; empties the list of arguments."""
        padded = None if self._padding is None else self._padding.pad(arguments)
        if padded is None:
            return run(self._specializer.find(arguments), arguments, outer)
        graph = self._specializer.find(padded.arguments)
        call = begin(graph.record, outer)
        call.crossed(call.at, padded.copied, shared=False)
        outputs = padded.restore(graph.run(padded.arguments, call), call)
        end(graph.record, call)
        return outputs

    def start(self, values: list[Any], call: Call) -> Sequence[Any]:
        """The outputs of a part of a graph; empties the list."""
        tensors = [tensor_of(value) for value in values]
        values.clear()
        return self.run(tensors, call)
