"""What serves calls of an operator on resident tensors: a traced graph, compiled when it runs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import torch
from torch import fx

from pjrt_bridge.mixed.execution import CallRecord, DeferredValue
from pjrt_bridge.mixed.launchers import BufferOutput
from pjrt_bridge.mixed.records import GraphRecord
from pjrt_bridge.runtime.dispatch.value_spec import ValueSpec
from pjrt_bridge.torch_interop import compat, precision
from pjrt_bridge.torch_interop.bind.graphs import DeviceGraph, PlainGraph
from pjrt_bridge.torch_interop.compat.devices import third_party_device
from pjrt_bridge.torch_interop.compiler import Compiler
from pjrt_bridge.torch_interop.device.recording import data_errors
from pjrt_bridge.torch_interop.device.recording.merging import Recordable
from pjrt_bridge.torch_interop.device.recording.recording import Recorder, recorder
from pjrt_bridge.torch_interop.device.recording.replays import Replay
from pjrt_bridge.torch_interop.passes.pipeline import Rewritten
from pjrt_bridge.torch_interop.resident.calls import shortcuts
from pjrt_bridge.torch_interop.resident.calls.calls import (
    OperatorSchema,
)
from pjrt_bridge.torch_interop.resident.client import failures
from pjrt_bridge.torch_interop.resident.client.chosen import Mode
from pjrt_bridge.torch_interop.resident.storages import transfer
from pjrt_bridge.torch_interop.resident.storages.resident_contents import ResidentContents
from pjrt_bridge.torch_interop.resident.storages.storage import (
    Contents,
    contents_of,
    has_divided,
    resident_tensor,
)
from pjrt_bridge.user_warnings import line_of_caller


@dataclass
class CallProgram:
    """What serves the calls of a key.

    Attributes:
        name: of the operator.
        compiler: of the graph.
        module: the graph.
        record: of the graph.
        steps: what leads from a call to a call of it.
        layout: for each result of the operator the index of an output, a list of them, or None;
            results that are arguments are not among them.
        given: how many arrays a call gives.
        numbers: how many numbers a call has.
        lifted: numbers are arguments.
        conditions: whether it serves certain numbers; None where it serves all.
        index: of the device.
        written: positions of the arguments that it writes into.
        mode: how operators run.
        form: of the operator.
        again: computes a call in PyTorch, of host tensors and `numbers=`.
        has_run: it ran once.
    """

    name: str
    compiler: Compiler
    module: fx.GraphModule
    record: GraphRecord
    steps: tuple[Rewritten, ...]
    layout: tuple[Any, ...]
    given: int
    numbers: int
    lifted: bool
    index: int
    written: tuple[int, ...]
    mode: Mode
    form: OperatorSchema
    again: Callable[..., Any]
    conditions: Callable[[Sequence[float]], bool] | None = None
    has_run: bool = False

    def serves(self, numbers: Sequence[float]) -> bool:
        """Whether it computes what a call with these numbers asks for."""
        return self.conditions is None or self.conditions(numbers)

    def _serves_as_precise(self, numbers: Sequence[float]) -> bool:
        """`serves`, of calls whose key lacks torch's settings: those of the compiled module."""
        return precision.settings() == self.compiler.settings and self.serves(numbers)

    @cached_property
    def shortcut(self) -> Any:
        """The way of further calls through the compiled module; None where there is none."""
        if self.mode == "sync" or not shortcuts.has_entrance():
            return None
        if self.mode == "fused":
            part, added = self.recordable, self._added(self.conditions)
            if part is None or added is None:
                return None
            return Replay(part, self.form, self.layout, self.index, added, self.again)
        conditions = self.conditions
        if isinstance(self.graph, DeviceGraph) and self.graph.took_precisions:
            conditions = self._serves_as_precise
        added = self._added(conditions)
        if added is None:
            return None
        return shortcuts.shortcut(
            self.graph,
            self.form,
            self.layout,
            self.index,
            added,
            self.numbers,
            self._note_line,
        )

    def _note_line(self) -> None:
        """Note the line of this call, for an error that is seen later."""
        failures.called(self.name, line_of_caller())

    def _added(
        self, conditions: Callable[[Sequence[float]], bool] | None
    ) -> shortcuts.CallNumbers | None:
        return shortcuts.CallNumbers.of(
            self.steps, self.given, lifted=self.lifted, conditions=conditions
        )

    @cached_property
    def graph(self) -> PlainGraph:
        """The compiled graph."""
        return self._compiled(self.record, divides=False)

    @cached_property
    def divided(self) -> PlainGraph:
        """The graph, compiled for arguments that are divided over a mesh."""
        record = GraphRecord(self.record.kind, self.record.name, self.record.plugin)
        return self._compiled(record, divides=True)

    def _compiled(self, record: GraphRecord, *, divides: bool) -> PlainGraph:
        compile = self.compiler.compile_rewritten
        with compiling_alone():
            return compile(self.module, record, self.index, divides=divides)

    @cached_property
    def recordable(self) -> Recordable | None:
        """The graph as a part of a larger one; None where it has to run by itself.

        What PyTorch runs is not recorded, so that it raises in the call what it refuses.
        """
        if self.mode != "fused" or not self.compiler.lowers(self.module):
            return None
        return Recordable.of(self.name, self.module, self.compiler.settings)

    def run(self, given: Sequence[Contents | torch.Tensor], numbers: Sequence[float]) -> list[Any]:
        """The outputs: resident tensors, and what is none.

        Raises:
            Exception: what PyTorch's operator raises for such data.
        """
        again = partial(self.again, numbers=numbers)
        try:
            return self._run(given, numbers, again)
        except Exception as error:
            refusal = data_errors.refusal(
                error,
                again,
                [item.buffer if isinstance(item, Contents) else item for item in given],
                self.name,
                self.index,
            )
            if refusal is None:
                raise
            raise refusal from error

    def _run(
        self,
        given: Sequence[Contents | torch.Tensor],
        numbers: Sequence[float],
        again: Callable[[Sequence[torch.Tensor]], Any],
    ) -> list[Any]:
        """The outputs; `again` computes the call in PyTorch, of host tensors."""
        divides = has_divided(given)
        self.has_run = self.has_run or not divides
        values: list[Any] = [
            ResidentContents(item) if isinstance(item, Contents) else item for item in given
        ]
        residents = list(values)
        if self.lifted:
            values.extend(numbers)

        def start(arguments: list[Any]) -> Sequence[Any]:
            graph = self.divided if divides else self.graph
            call = CallRecord(len(graph.record.segments))
            if isinstance(graph, DeviceGraph) and graph.checks_data:
                self._note_line()
            outputs = graph.start(list(arguments), call)
            if any(isinstance(item, torch.Tensor) for item in arguments):
                call.finish()
            return [self._result(item) for item in outputs]

        run: Callable[[list[Any]], Sequence[Any]] = start
        part = self.recordable
        if part is not None and not divides:
            run = partial(_recorded, recorder(self.index), part, again)
        for step in reversed(self.steps):
            if step.steps:
                run = _before(step, run)
        outputs = run(values)
        for value in (residents[place] for place in self.written):
            # PyTorch computed it, in a copy.
            if value.host is not None and not value.replaced:
                buffer = transfer.put(value.host, self.index)
                value.replace(buffer, ValueSpec.row_major(buffer.type))
        if self.mode == "sync":
            for item in outputs:
                if isinstance(item, torch.Tensor):
                    contents_of(item).buffer.block_until_ready()
        return list(outputs)

    def _result(self, value: Any) -> Any:
        if isinstance(value, DeferredValue):
            value = value.direct
        if isinstance(value, BufferOutput):
            return resident_tensor(value.buffer, value.spec, self.index)
        if isinstance(value, ResidentContents):
            # The graph gives an argument as it is; buffers are never written into.
            elements = value.contents.elements
            return resident_tensor(elements, ValueSpec.row_major(elements.type), self.index)
        if isinstance(value, torch.Tensor):
            return transfer.to_device(value, self.index)
        return value


# The compiled module calls it, as it does what makes the numbers of a call.
compat.leave_alone(CallProgram._note_line)


def _recorded(
    recorder: Recorder, part: Recordable, again: Callable[..., Any], arguments: list[Any]
) -> list[Any]:
    held = [item.contents if isinstance(item, ResidentContents) else item for item in arguments]
    return recorder.record(part, again, held)


def _before(
    step: Rewritten, run: Callable[[list[Any]], Sequence[Any]]
) -> Callable[[list[Any]], Sequence[Any]]:
    return lambda arguments: step.call(run, arguments)


_compiling = threading.RLock()


@contextmanager
def compiling_alone() -> Iterator[None]:
    """One thread compiles at a time, and nothing that surrounds the call takes part.

    Operators are called where torch traces, and where it runs kernels for what it traces.
    """
    with _compiling, compat.untraced(), third_party_device.seen_by_python():
        yield
