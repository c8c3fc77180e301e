"""Graphs over resident tensors, with a fast path for those that need no more than one program."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import torch

from pjrt_bridge.mixed.execution import CallRecord
from pjrt_bridge.mixed.records import GraphRecord
from pjrt_bridge.runtime.dispatch.value_spec import ValueSpec
from pjrt_bridge.runtime.objects.mesh_program import AnyBuffer
from pjrt_bridge.torch_interop.bind.graphs import PlainGraph, run
from pjrt_bridge.torch_interop.resident.calls.shortcuts import GraphShortcut
from pjrt_bridge.torch_interop.resident.graphs.border import BorderGraph, GivenTensor
from pjrt_bridge.torch_interop.resident.graphs.residency import Residency
from pjrt_bridge.torch_interop.resident.storages import transfer
from pjrt_bridge.torch_interop.resident.storages.replacement import replace_elements
from pjrt_bridge.torch_interop.resident.storages.storage import (
    contents_of,
    is_divided,
    resident_tensor,
)


class ResidentArgument(GivenTensor):
    """A resident tensor that a graph is given."""

    __slots__ = ()

    def buffer_as(self, spec: ValueSpec) -> AnyBuffer:
        """Its elements, lying as a program takes them."""
        return transfer.buffer_as(self.values, spec)

    def tensor(self) -> torch.Tensor:
        """A copy in host memory; waits for the values."""
        if self.host is None:
            self.host = (
                transfer.to_host_in_memory(self.given)
                if self._addressed
                else transfer.to_host(self.values)
            )
        return self.host

    def place(self, before: AnyBuffer, after: AnyBuffer) -> None:
        """Have the tensor hold the same elements, divided."""
        contents = contents_of(self.given)
        if contents.held is before:
            contents.replace(after)

    def replace(self, buffer: AnyBuffer, spec: ValueSpec) -> None:
        """Have the tensor hold other elements from now on, and all views of it."""
        if self.given.is_conj() or self.given.is_neg():
            self.given.detach().copy_(resident_tensor(buffer, spec, contents_of(self.given).index))
        else:
            replace_elements(self.given, buffer, spec)
        if not self.given.is_inference():
            torch.autograd.graph.increment_version(self.given)
        self.replaced = True


class ResidentPlace:
    """See `Place`.

    Args:
        index: of the device.
    """

    def __init__(self, index: int) -> None:
        self._index = index

    def given(self, tensor: torch.Tensor, *, addressed: bool) -> GivenTensor:
        """A resident tensor as an argument of the graph."""
        return ResidentArgument(tensor, addressed=addressed)

    def result(self, buffer: AnyBuffer, spec: ValueSpec) -> torch.Tensor:
        """A resident tensor over a result."""
        return resident_tensor(buffer, spec, self._index)

    def to_device(self, tensor: torch.Tensor) -> torch.Tensor:
        """A resident tensor of a copy of a host tensor's elements."""
        return transfer.to_device(tensor, self._index)

    def write(self, target: GivenTensor, elements: torch.Tensor) -> None:
        """Write a host tensor's elements into the user's tensor."""
        buffer = transfer.put(elements, self._index)
        target.replace(buffer, ValueSpec.row_major(buffer.type))


class ResidentPath:
    """The fast path of a graph all of whose tensors are on the device.

    Args:
        run: gives the results for arguments; None where the call has to go another way.
        record: of the graph.
    """

    def __init__(
        self, run: Callable[[Sequence[Any]], Sequence[Any] | None], record: GraphRecord
    ) -> None:
        self._run = run
        self._record = record

    def before(self, otherwise: Callable[..., Any]) -> Callable[..., Any]:
        """What Dynamo's code calls: the fast path, and what has to go another way `otherwise`."""
        run, record, crosses_nothing = self._run, self._record, CallRecord(1)

        def call(*values: Any) -> Any:
            found = run(values)
            if found is None:
                return otherwise(*values)
            record.last = crosses_nothing
            return found

        return call


class ResidentGraph(BorderGraph):
    """A compiled graph of resident tensors.

    Args:
        graph: the same over host tensors.
        residency: what is where.
        divided: gives the same for tensors that are divided over a mesh; None: it is that.
        in_place: programs read host tensors where they lie.
    """

    def __init__(
        self,
        graph: PlainGraph,
        residency: Residency,
        divided: Callable[[], ResidentGraph] | None = None,
        *,
        in_place: bool,
    ) -> None:
        place = ResidentPlace(residency.index)
        super().__init__(graph, residency, lambda: place, in_place=in_place)
        self._make_divided = divided
        self._shortcut = GraphShortcut.of(graph, residency.results, residency.index)

    @cached_property
    def _divided(self) -> ResidentGraph:
        assert self._make_divided is not None
        return self._make_divided()

    def fast_path(self) -> ResidentPath | None:
        """The fast path; None where more has to be done than to start one program."""
        return None if self._shortcut is None else ResidentPath(self._by_shortcut, self.record)

    def _by_shortcut(self, arguments: Sequence[Any]) -> Sequence[Any] | None:
        if self._shortcut is None or self._residency.has_bits(arguments):
            return None
        return self._shortcut.run(arguments)

    def run(self, arguments: list[Any], call: CallRecord) -> Sequence[Any]:
        """The outputs; empties the list of arguments. Does not wait for what stays on the device.

        Raises:
            DeviceError: an argument on another device than the graph was compiled for.
        """
        found = self._by_shortcut(arguments)
        if found is not None:
            arguments.clear()
            return found
        if self._make_divided is not None and any(map(is_divided, arguments)):
            return run(self._divided, arguments, call)
        return super().run(arguments, call)
