"""FrameworkAdapter and Bindings: a framework's tensors, and how programs map to them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from pjrt_bridge.runtime.dispatch.plans import BoundParameter, Capsules, Framework
from pjrt_bridge.runtime.dispatch.value_spec import ValueSpec
from pjrt_bridge.runtime.objects.mesh_program import AnyBuffer
from pjrt_bridge.runtime.transfers.host import HostArray


@dataclass(frozen=True)
class SegmentInput:
    """An input of the segment, by its position: returned as it is, or updated."""

    position: int


@dataclass(frozen=True)
class Computed:
    """A result of the program, by index."""

    result: int


@dataclass(frozen=True)
class Constant:
    """A value that is the same in every call: a number, None, a variable of the framework."""

    value: Any


@dataclass(frozen=True)
class Bindings:
    """The mapping of a program's parameters and results to a segment's values.

    Attributes:
        parameters: of the program; positions count the values that the program is given: those of
            the segment that `takes` names, then those that `reads` gives.
        results: of the program.
        outputs: what each output of the segment is.
        updates: what gets a new value, with the index of the result that it is.
        takes: positions of the segment's values that the program is given; None: all of them.
        reads: gives further values, read anew in each call.
        pinned: positions of values that are expected to stay in the same memory between calls.
    """

    parameters: Sequence[BoundParameter]
    results: Sequence[ValueSpec]
    outputs: Sequence[SegmentInput | Computed | Constant]
    updates: Sequence[tuple[SegmentInput | Constant, int]] = ()
    takes: Sequence[int] | None = None
    reads: Callable[[], list[Any]] | None = None
    pinned: frozenset[int] = frozenset()

    @property
    def writes(self) -> bool:
        """Whether the program writes into memory of its arguments."""
        return any(parameter.written for parameter in self.parameters)

    def targets(self) -> tuple[int | None, ...] | None:
        """For each result the position of the argument that it becomes the value of.

        None in place of one that is an output. None instead where anything else has to be done
        with the results: outputs that are none of them, or not in their order, or given twice,
        and targets that are no arguments, or lie otherwise than the results.
        """
        updated = self.updated()
        if updated is None or self.takes is not None or self.reads is not None:
            return None
        indices = range(len(self.results))
        handed_on = [Computed(at) for at in indices if at not in updated]
        return tuple(map(updated.get, indices)) if list(self.outputs) == handed_on else None

    def updated(self) -> Mapping[int, int] | None:
        """The results that arguments become, by index, with the positions of these.

        None where a target is no argument, or lies otherwise than its result, and where several
        become one result.
        """
        found: dict[int, int] = {}
        for target, index in self.updates:
            if (
                not isinstance(target, SegmentInput)
                or index in found
                or not self._lies_as(target, self.results[index])
            ):
                return None
            found[index] = target.position
        return found

    def _lies_as(self, argument: SegmentInput, result: ValueSpec) -> bool:
        """Whether an argument lies as a result does, where the program reads it."""
        return all(
            parameter.spec.lies_as(result)
            for parameter in self.parameters
            if parameter.position == argument.position
        )


class FrameworkAdapter(Protocol):
    """A framework's tensors, as the execution core uses them."""

    def exchange(self) -> Framework | Capsules | None:
        """How the dispatcher in C reads and makes tensors; None: it cannot."""

    def snapshot(self, value: Any) -> Any:
        """The same elements in the same memory, also when the value is given other memory later."""

    def address(self, value: Any) -> int:
        """Where the first element lies in host memory."""

    def version(self, value: Any) -> object:
        """Changes when elements of the value change, so that copies are renewed; None: unknown."""

    def arranged(self, value: Any, spec: ValueSpec) -> Any:
        """The value, lying in memory as the program takes it; copied where it lies differently.

        Raises:
            DataError: a value of another shape or element type.
        """

    def host_array(self, value: Any, spec: ValueSpec) -> HostArray:
        """The memory of `arranged`, as the row-major array that the program takes.

        Raises:
            DataError: a value of another shape or element type.
        """

    def adopt(self, buffer: AnyBuffer, spec: ValueSpec) -> Any:
        """A tensor over a buffer's memory, or over a copy; waits for the values."""

    def assign(self, target: Any, value: Any) -> None:
        """Give a target of an update its new value, which the program may have written there."""
