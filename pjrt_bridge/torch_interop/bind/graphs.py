"""Compiled ATen graphs: whole on the device, whole in PyTorch, or in parts.

Each has `run(arguments, call)`: it gives the graph's outputs, empties the list of arguments
(AOTAutograd's convention), and waits before it returns, because arguments are shared with the
plugin and their owner may write to them next.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Protocol, runtime_checkable

import torch

from pjrt_bridge.errors import OutOfRange
from pjrt_bridge.mixed.execution import (
    CallRecord,
    DeferredValue,
    ResidentValue,
    Runner,
    tensor_of,
)
from pjrt_bridge.mixed.launchers import BufferOutput
from pjrt_bridge.mixed.padded_sizes import OFTEN
from pjrt_bridge.mixed.program import MixedProgram
from pjrt_bridge.mixed.records import GraphRecord, begin, end
from pjrt_bridge.mixed.segment import DeviceSegment
from pjrt_bridge.mixed.variants import Begin, HostReason, VariantCache
from pjrt_bridge.torch_interop import compat
from pjrt_bridge.torch_interop.bind.changing_strides import ChangingStrides
from pjrt_bridge.torch_interop.bind.entrance import Entrance
from pjrt_bridge.torch_interop.bind.segments import HostSegment
from pjrt_bridge.torch_interop.bind.sizes import changes, sizes_of, stand_in, stands_for_itself
from pjrt_bridge.torch_interop.passes.padding import (
    CannotPad,
    GraphPadding,
    OutOfCall,
    Padded,
)
from pjrt_bridge.torch_interop.passes.pipeline import Rewritten
from pjrt_bridge.torch_interop.placement.split import Split


class CompiledGraph(Protocol):
    """A graph that can run."""

    @property
    def record(self) -> GraphRecord:
        """The graph record."""

    def run(self, arguments: list[Any], call: CallRecord) -> Sequence[Any]:
        """The outputs; empties the list of arguments."""


class PlainGraph(CompiledGraph, Protocol):
    """A graph as it was compiled, without anything that happens around its calls."""

    def start(self, values: list[Any], call: CallRecord) -> Sequence[Any]:
        """The outputs, which may be deferred, for values of any kind."""


class Before(Protocol):
    """A fast path."""

    def before(self, otherwise: Callable[..., Any]) -> Callable[..., Any]:
        """What Dynamo's code calls: the fast path, and where it is closed the usual path."""


@runtime_checkable
class Direct(Protocol):
    """A graph whose calls may go past AOTAutograd's wrapper."""

    def fast_path(self) -> Before | None:
        """The fast path for calls like the one before; None where there is none."""


def run(
    graph: CompiledGraph, arguments: list[Any], outer: CallRecord | None = None
) -> Sequence[Any]:
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

    def run(self, arguments: list[Any], call: CallRecord) -> Sequence[Any]:
        """The outputs; empties the list of arguments."""
        return self.start(arguments, call)

    def start(self, values: list[Any], call: CallRecord) -> Sequence[Any]:
        """The outputs; empties the list of values."""
        return call.run(self._segment.start, values)


class DeviceGraph:
    """A graph that is one program on the device.

    Args:
        segment: the program.
        record: of the graph.
        took_precisions: see `Emitted`.
        checks_data: see `Emitted`.

    Attributes:
        segment: see above.
        record: see above.
        took_precisions: see above.
        checks_data: see above.
    """

    def __init__(
        self,
        segment: DeviceSegment,
        record: GraphRecord,
        *,
        took_precisions: bool,
        checks_data: bool,
    ) -> None:
        self.segment = segment
        self.record = record
        self.took_precisions = took_precisions
        self.checks_data = checks_data

    def fast_path(self) -> Entrance | None:
        """The fast path for calls like the one before; None where there is none."""
        found = Entrance.of(self.segment)
        if found is not None:
            self.segment.fast_path = found
            self.record.follow(found.last)
        return found

    def run(self, arguments: list[Any], call: CallRecord) -> Sequence[Any]:
        """The outputs; empties the list of arguments."""
        given = list(arguments)
        arguments.clear()
        return call.run(self.segment.run, given)

    def start(self, values: list[Any], call: CallRecord) -> Sequence[Any]:
        """The outputs, deferred."""
        return call.run(self.segment.start, values)


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

    def run(self, arguments: list[Any], call: CallRecord) -> Sequence[Any]:
        """The outputs; empties the list of arguments."""
        return [tensor_of(value) for value in self.start(arguments, call)]

    def start(self, values: list[Any], call: CallRecord) -> Sequence[Any]:
        """The outputs as the segments gave them; empties the list of values."""
        # The program drops arguments after their last use; those that are written into stay.
        written = [(values[position], index) for position, index in self._mutations]
        found = self._program.run(values, call)
        for argument, index in written:
            _assign(argument, found[index])
        return [found[item] if isinstance(item, int) else item[0] for item in self._outputs]


def _assign(argument: Any, value: Any) -> None:
    """Give an argument its new value."""
    if isinstance(argument, ResidentValue):
        direct = value.direct if isinstance(value, DeferredValue) else value
        if isinstance(direct, BufferOutput):
            argument.replace(direct.buffer, direct.spec)
            return
    with torch.no_grad():
        tensor_of(argument).copy_(tensor_of(value))


class RewrittenGraph:
    """A graph that passes rewrote: its arguments and results are those of the graph before.

    Args:
        graph: the rewritten graph, compiled.
        rewritten: what the passes did.
    """

    def __init__(self, graph: CompiledGraph, rewritten: Rewritten) -> None:
        self._graph = graph
        self._rewritten = rewritten
        self.record = graph.record

    def run(self, arguments: list[Any], call: CallRecord) -> Sequence[Any]:
        """The outputs; empties the list of arguments."""
        return self._rewritten.call(lambda given: self._graph.run(given, call), arguments)


_AGAIN = "these sizes came again: compiled beside the calls that PyTorch ran meanwhile"
_OFTEN = f"these sizes came {OFTEN} times: a program of just these replaces the padded one"


class SymbolicGraph:
    """A graph whose sizes are known when it runs: compiled for the sizes that come.

    Args:
        compile: compiles it for the sizes of a list of arguments, of a call that may be padded; it
            is told what differs from the sizes that were compiled before, None for the first. It
            raises CannotPad where the call has to be run without padding.
        uncompiled: runs any sizes, without compiling; None where every size has to be compiled.
        padding: pads sizes, so that fewer come.
        strides: removes strides that change.
        on_host: told of each call that PyTorch runs because its sizes are not compiled.
        begin: see `VariantCache`.
    """

    def __init__(
        self,
        compile: Callable[[list[Any], str | None, Padded | None], CompiledGraph],
        uncompiled: CompiledGraph | None = None,
        padding: GraphPadding | None = None,
        strides: ChangingStrides | None = None,
        on_host: Callable[[HostReason], None] | None = None,
        begin: Begin | None = None,
    ) -> None:
        self._compile = compile
        self._uncompiled = uncompiled
        self._variants: VariantCache[CompiledGraph] = VariantCache(uncompiled, on_host, begin)
        self._padding = padding
        self._strides = strides

    def _find(self, arguments: list[Any], padded: Padded | None = None) -> CompiledGraph:
        sizes = sizes_of(arguments)
        able = padded is None and all(map(stands_for_itself, arguments))
        later = partial(self._later, arguments, sizes, _AGAIN) if able else None
        compile = self._compiler(arguments, sizes, padded)
        key = (padded is not None, sizes)
        return self._variants.find(key, compile, wanted=padded is not None, later=later)

    def _compiler(
        self,
        arguments: list[Any],
        sizes: tuple[Any, ...],
        padded: Padded | None = None,
        why: str | None = None,
    ) -> Callable[[Hashable | None], CompiledGraph]:
        def compile(last: Hashable | None) -> CompiledGraph:
            assert last is None or isinstance(last, tuple)
            changed = None if last is None else changes(last[1], sizes)
            trigger = "; ".join(filter(None, (changed, why))) or None
            # A mode of the caller's would see operators that only compiling needs.
            with compat.untraced():
                return self._compile(arguments, trigger, padded)

        return compile

    def _later(
        self, arguments: list[Any], sizes: tuple[Any, ...], why: str
    ) -> Callable[[Hashable | None], CompiledGraph]:
        """What compiles a call's sizes, and does not hold its tensors."""
        return self._compiler(list(map(stand_in, arguments)), sizes, why=why)

    def _has_own(self, arguments: list[Any]) -> bool:
        """Whether a program of just the sizes of a call is there; else it is begun."""
        if not all(map(stands_for_itself, arguments)):
            return False
        sizes = sizes_of(arguments)
        return self._variants.ready((False, sizes), partial(self._later, arguments, sizes, _OFTEN))

    def run(self, arguments: list[Any], outer: CallRecord | None = None) -> Sequence[Any]:
        """The outputs; empties the list of arguments."""
        if self._strides is not None:
            self._strides.remove(arguments)
        padded = (
            None
            if self._padding is None
            else self._padding.pad(arguments, partial(self._has_own, arguments))
        )
        if padded is not None:
            graph = None
            with suppress(CannotPad):
                graph = self._find(padded.arguments, padded)
            if graph is not None and graph is not self._uncompiled:
                call = begin(graph.record, outer)
                call.crossed(call.at, padded.copied, shared=False)
                if not padded.may_raise:
                    padded.original.clear()
                # An operator of the graph before says what eager says of a wrong position.
                with suppress(OutOfCall, OutOfRange):
                    outputs = padded.restore(graph.run(padded.arguments, call), call)
                    end(graph.record, call)
                    return outputs
            arguments[:] = padded.original
        return run(self._find(arguments), arguments, outer)

    def start(self, values: list[Any], call: CallRecord) -> Sequence[Any]:
        """The outputs of a part of a graph; empties the list."""
        tensors = [tensor_of(value) for value in values]
        values.clear()
        return self.run(tensors, call)
