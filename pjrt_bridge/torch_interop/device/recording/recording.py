"""Operators that are recorded, and computed as one program when a value is needed (fused eager).

An operator's graph is kept with what its arguments are: buffers, or results that were recorded
before. What it gives, or writes, becomes a `Pending` value. A storage refers to its values, and
they never change, so that a write after a read is no hazard. When a value is read, the graph gets
long, a backward pass is over or an optimizer has made a step, all that was recorded becomes one
program (`merging.py`), which is kept by its structure. Results that nobody refers to any more are
not among those of the program.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import torch

from pjrt_bridge.errors import DeviceError, PjrtError
from pjrt_bridge.mixed.adapter import SegmentInput
from pjrt_bridge.mixed.execution import CallRecord, DeferredValue, ResidentValue
from pjrt_bridge.mixed.launchers import BufferOutput
from pjrt_bridge.runtime import Buffer, ShardedBuffer
from pjrt_bridge.runtime.dispatch.value_spec import ValueSpec
from pjrt_bridge.runtime.objects.mesh_program import AnyBuffer
from pjrt_bridge.torch_interop.bind.graphs import DeviceGraph, PlainGraph
from pjrt_bridge.torch_interop.compat.devices import third_party_device
from pjrt_bridge.torch_interop.device.recording import data_errors, merging
from pjrt_bridge.torch_interop.device.recording.merging import Recordable, Recorded, Reference
from pjrt_bridge.torch_interop.resident.client import chosen, failures
from pjrt_bridge.torch_interop.resident.client.chosen import of_client
from pjrt_bridge.torch_interop.resident.recent import Recent
from pjrt_bridge.torch_interop.resident.storages import transfer
from pjrt_bridge.torch_interop.resident.storages.storage import (
    Contents,
    Pending,
    ResultForm,
    resident_tensor,
    started,
)
from pjrt_bridge.user_warnings import line_of_caller

LONGEST = 2000
"""Operators after which what was recorded is computed."""


class PendingValue:
    """A result that was recorded.

    Args:
        recorder: of its device.
        form: how it lies.
        place: of the operator that gives it, among those that were recorded with it.

    Attributes:
        type: shape and element type of the array in memory.
    """

    __slots__ = ("__weakref__", "_error", "_recorder", "buffer", "form", "place", "type")

    def __init__(self, recorder: Recorder, form: ResultForm, place: Reference) -> None:
        self._recorder = recorder
        self.form = form
        self.type = form.memory
        self.place = place
        self.buffer: Buffer | None = None
        self._error: Exception | None = None

    @property
    def is_open(self) -> bool:
        """Whether it has still to be computed."""
        return self.buffer is None and self._error is None

    def fail(self, error: Exception) -> None:
        """Note why it cannot be computed."""
        self._error = error

    def compute(self) -> Buffer:
        """Its elements; computes all that was recorded.

        Raises:
            Exception: what the operator raised that gives it.
        """
        if self.is_open:
            self._recorder.flush()
        if self._error is not None:
            raise self._error
        assert self.buffer is not None
        return self.buffer


class _Given(ResidentValue):
    """A buffer, as an argument of a program."""

    __slots__ = ("_buffer", "_index")

    def __init__(self, buffer: Buffer, index: int) -> None:
        self._buffer = buffer
        self._index = index

    def buffer_as(self, spec: ValueSpec) -> Buffer:
        """Its elements; programs take them as they lie."""
        return self._buffer

    def tensor(self) -> torch.Tensor:
        """A copy in host memory; waits for the values."""
        spec = ValueSpec.row_major(self._buffer.type)
        return transfer.to_host(resident_tensor(self._buffer, spec, self._index))

    def replace(self, buffer: AnyBuffer, spec: ValueSpec) -> None:
        """Not called: recorded graphs write into nothing."""
        raise NotImplementedError


class _RecordedOperator:
    """One operator that was recorded, and the line of the user's code that called it."""

    __slots__ = ("again", "arguments", "line", "part", "results")

    def __init__(
        self,
        part: Recordable,
        again: Callable[[Sequence[torch.Tensor]], Any],
        arguments: tuple[Reference, ...],
        results: tuple[weakref.ref[PendingValue], ...],
    ) -> None:
        self.part = part
        self.again = again
        self.arguments = arguments
        self.line = line_of_caller()
        self.results = results


class Recorder:
    """The recorder of a device: recorded operators, and programs of earlier recordings.

    Args:
        index: of the device.
    """

    def __init__(self, index: int) -> None:
        self._index = index
        self._lock = threading.RLock()
        self._programs: Recent[PlainGraph] = Recent()
        self._last: Recorded | None = None
        self._backward = -1
        self._forget()

    def _forget(self) -> None:
        self._operators: list[_RecordedOperator] = []
        self._given: list[Any] = []
        # By the identity of a buffer, which is among those that are given.
        self._slots: dict[int, Reference] = {}

    def record(
        self,
        part: Recordable,
        again: Callable[[Sequence[torch.Tensor]], Any],
        arguments: Sequence[Contents | torch.Tensor | None],
    ) -> list[Any]:
        """Record an operator.

        Args:
            part: its graph.
            again: computes it in PyTorch, of its host tensors.
            arguments: contents of storages, host tensors, and numbers, which are None; no contents
                are divided over a mesh.

        Returns:
            Its outputs: resident tensors, and what is none.
        """
        with self._lock:
            backward = third_party_device.backward_pass()
            operators = self._operators
            if operators and (
                self._backward not in (-1, backward)
                or operators[0].part.settings != part.settings
                or len(operators) >= LONGEST
            ):
                self.flush()
            self._backward = backward
            references = tuple(map(self._reference, arguments, part.reads))
            # To compute what was recorded begins another list.
            operators = self._operators
            at = len(operators)
            made = [
                PendingValue(self, form, (at, result)) for result, form in enumerate(part.forms)
            ]
            operators.append(
                _RecordedOperator(part, again, references, tuple(map(weakref.ref, made)))
            )
            outputs = [
                part.forms[item].tensor(made[item], self._index)
                if isinstance(item, int)
                else self._handed_on(arguments[item.position])
                if isinstance(item, SegmentInput)
                else item.value
                for item in part.outputs
            ]
            for argument, item in part.written:
                taken = arguments[argument]
                assert isinstance(taken, Contents)
                taken.replace(
                    made[item]
                    if isinstance(item, int)
                    else self._elements(arguments[item.position])
                )
            return outputs

    def _elements(self, argument: Any) -> Buffer | Pending:
        if isinstance(argument, Contents):
            found = argument.elements
            # Calls on what is divided are not recorded.
            assert not isinstance(found, ShardedBuffer)
            return found
        return transfer.put(argument, self._index)

    def _handed_on(self, argument: Any) -> torch.Tensor:
        elements = self._elements(argument)
        return resident_tensor(elements, ValueSpec.row_major(elements.type), self._index)

    def _reference(self, argument: Contents | torch.Tensor | None, is_read: bool) -> Reference:
        if argument is None:
            return merging.NOTHING
        if not is_read:
            return merging.UNREAD
        if not isinstance(argument, Contents):
            # Its owner may write into it before it is read.
            self._given.append(transfer.put(argument, self._index))
            return merging.GIVEN, len(self._given) - 1
        held = argument.held
        if isinstance(held, PendingValue) and held.is_open:
            return held.place
        elements = argument.buffer
        found = self._slots.get(id(elements))
        if found is None:
            self._given.append(elements)
            found = self._slots[id(elements)] = merging.GIVEN, len(self._given) - 1
        return found

    def flush(self) -> None:
        """Start the computation of all that was recorded.

        What an operator raises is raised where its results are read.
        """
        with self._lock:
            operators, given = self._operators, self._given
            if not operators:
                return
            self._forget()
            wanted = {
                (at, result): value
                for at, operator in enumerate(operators)
                for result, reference in enumerate(operator.results)
                if (value := reference()) is not None
            }
            if not wanted:
                return
            key = (
                tuple((operator.part.number, operator.arguments) for operator in operators),
                tuple(wanted),
            )
            program = self._programs.find(key)
            try:
                recorded = Recorded(
                    tuple((operator.part, operator.arguments) for operator in operators),
                    tuple(wanted),
                )
                if program is None:
                    program = merging.compiled(recorded, self._index, recorded.change(self._last))
                    self._programs.add(key, program)
                self._last = recorded
                if isinstance(program, DeviceGraph) and program.checks_data:
                    failures.recorded(
                        [(operator.part.name, operator.line) for operator in operators]
                    )
                self._run(program, given, wanted)
            except Exception:
                self._one_by_one(operators, given, wanted)
            finally:
                for value in wanted.values():
                    if value.is_open:
                        value.fail(DeviceError("the computation of this value was interrupted"))

    def _run(
        self, program: PlainGraph, given: Sequence[Buffer], wanted: dict[Reference, PendingValue]
    ) -> None:
        call = CallRecord(len(program.record.segments))
        values = [_Given(buffer, self._index) for buffer in given]
        for value, output in zip(wanted.values(), program.start(list(values), call), strict=True):
            found = output.direct if isinstance(output, DeferredValue) else output
            if isinstance(found, _Given):
                value.buffer = found.buffer_as(value.form.spec)
            elif isinstance(found, BufferOutput) and isinstance(found.buffer, Buffer):
                value.buffer = found.buffer
            else:
                value.buffer = transfer.put(found, self._index)
            assert value.buffer.type == value.type, (value.buffer.type, value.type)
            started(value.buffer)

    def _one_by_one(
        self,
        operators: Sequence[_RecordedOperator],
        given: Sequence[Buffer],
        wanted: dict[Reference, PendingValue],
    ) -> None:
        """Run each operator by itself; what one of them raises is what its results raise."""
        values: dict[Reference, Buffer | Exception] = {
            (merging.GIVEN, at): buffer for at, buffer in enumerate(given)
        }
        for at, operator in enumerate(operators):
            made = {
                (at, result): PendingValue(self, form, (at, result))
                for result, form in enumerate(operator.part.forms)
            }
            found = self._run_alone(operator, values, made)
            for place, value in made.items():
                values[place] = found or value.compute()
                kept = wanted.get(place)
                if kept is not None:
                    kept.buffer = value.buffer
                    if found is not None:
                        kept.fail(found)

    def _run_alone(
        self,
        operator: _RecordedOperator,
        values: Mapping[Reference, Buffer | Exception],
        made: dict[Reference, PendingValue],
    ) -> Exception | None:
        """Compute the results of an operator; gives what it, or one of its arguments, raised."""
        taken = [
            values[item] if item != merging.UNREAD else operator.part.unread(place)
            for place, item in enumerate(operator.arguments)
            if item != merging.NOTHING
        ]
        failed = next((item for item in taken if isinstance(item, Exception)), None)
        if failed is not None:
            return failed
        buffers = [item for item in taken if isinstance(item, Buffer)]
        places = iter(range(len(buffers)))
        arguments = tuple(
            (merging.GIVEN, next(places)) if item in values else item for item in operator.arguments
        )
        own = tuple((0, result) for result in range(len(made)))
        try:
            alone = Recorded(((operator.part, arguments),), own)
            program = merging.compiled(alone, self._index)
            self._run(program, buffers, made)
        except Exception as error:
            name, line = operator.part.name, operator.line
            given = [item for item in taken if not isinstance(item, Exception)]
            refusal = data_errors.refusal(error, operator.again, given, name, self._index, line)
            if refusal is None and isinstance(error, PjrtError):
                types = (item.type for item in buffers)
                return failures.told(error, name, types, self._index, line)
            return refusal or error
        return None


@cache
def recorder(index: int) -> Recorder:
    """The recorder of a device."""
    return Recorder(index)


of_client(recorder.cache_clear)


def compute_all() -> None:
    """Start the computation of all that was recorded for any device."""
    # Steps of optimizers end here, not in an operator, before which torch leaves modes.
    with third_party_device.unseen_by_overrides():
        for index in range(chosen.device_count() if chosen.is_in_use() else 0):
            recorder(index).flush()
