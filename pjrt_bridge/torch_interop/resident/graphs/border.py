"""Graphs over tensors on a device: their values are there before a call and stay there.

Such a graph is compiled as one of host tensors. At its border an argument that is on the device
goes in as a buffer over its elements, and a result that the graph promises there comes out as a
tensor of the device; only what a host segment reads, or gives, crosses.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch

from pjrt_bridge.errors import DeviceError
from pjrt_bridge.mixed.execution import CallRecord, DeferredValue, ResidentValue
from pjrt_bridge.mixed.launchers import BufferOutput
from pjrt_bridge.mixed.records import GraphRecord
from pjrt_bridge.runtime.dispatch.value_spec import ValueSpec
from pjrt_bridge.runtime.objects.mesh_program import AnyBuffer
from pjrt_bridge.torch_interop.bind.adapter import TorchAdapter
from pjrt_bridge.torch_interop.bind.graphs import PlainGraph
from pjrt_bridge.torch_interop.compat.devices.sparse_tensors import is_sparse
from pjrt_bridge.torch_interop.resident.graphs.residency import Residency, is_on


class BufferAdapter(TorchAdapter):
    """Segments between values on the device take and give buffers."""

    def exchange(self) -> None:
        """The dispatcher in C reads and makes tensors of the host."""


BUFFERS = BufferAdapter()


class GivenTensor(ResidentValue):
    """A tensor on the device that a graph is given.

    Args:
        given: the user's.
        addressed: host segments need the elements around it, too.

    Attributes:
        given: see above.
        host: the copy that host segments were given, if any.
        replaced: the program gave new elements.
    """

    __slots__ = ("_addressed", "given", "host", "replaced")

    def __init__(self, given: torch.Tensor, *, addressed: bool = False) -> None:
        self.given = given
        self._addressed = addressed
        self.host: torch.Tensor | None = None
        self.replaced = False

    @property
    def values(self) -> torch.Tensor:
        """It, or a copy whose memory holds its values: others are conjugated or negated there."""
        if self.given.is_conj() or self.given.is_neg():
            return self.given.detach().resolve_conj().resolve_neg()
        return self.given


class Place(Protocol):
    """The device that the tensors of a graph are on, as one call of the graph uses it."""

    def given(self, tensor: torch.Tensor, *, addressed: bool) -> GivenTensor:
        """A tensor there as an argument of the graph; see `GivenTensor`."""

    def result(self, buffer: AnyBuffer, spec: ValueSpec) -> torch.Tensor:
        """A tensor there over a result."""

    def to_device(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor there of a copy of a host tensor's elements."""

    def write(self, target: GivenTensor, elements: torch.Tensor) -> None:
        """Write a host tensor's elements into the user's tensor."""


class BorderGraph:
    """A compiled graph of tensors on a device.

    Args:
        graph: the same over host tensors.
        residency: what is where.
        place: gives the device for each call.
        in_place: programs read host tensors where they lie.

    Attributes:
        record: of the graph.
    """

    def __init__(
        self,
        graph: PlainGraph,
        residency: Residency,
        place: Callable[[], Place],
        *,
        in_place: bool,
    ) -> None:
        self._graph = graph
        self._residency = residency
        self._place = place
        self._in_place = in_place
        self.record: GraphRecord = graph.record

    def run(self, arguments: list[Any], call: CallRecord) -> Sequence[Any]:
        """The outputs; empties the list of arguments. Does not wait for what stays on the device.

        Raises:
            DeviceError: an argument on another device than the graph was compiled for.
        """
        place = self._place()
        values = [self._given(at, value, place) for at, value in enumerate(arguments)]
        arguments.clear()
        # Their owner may write into them.
        read = self._in_place and any(isinstance(value, torch.Tensor) for value in values)
        written = [values[at] for at in self._residency.written]
        outputs = self._graph.start(list(values), call)
        if read:
            call.finish()
        results = [
            _result(item, place, resident=resident)
            for item, resident in zip(outputs, self._residency.results, strict=True)
        ]
        for value in written:
            # PyTorch computed it, in a copy.
            wrote = isinstance(value, GivenTensor) and not value.replaced
            if wrote and value.host is not None:
                place.write(value, value.host)
        call.let_go()
        return results

    def _given(self, at: int, value: Any, place: Place) -> Any:
        residency = self._residency
        if not is_on(value, residency.kind):
            return value
        if (value.device.index or 0) != residency.index:
            raise DeviceError(
                f"found a tensor of shape {tuple(value.shape)} on device {value.device}, expected "
                f"all on {residency.kind}:{residency.index}"
            )
        if is_sparse(value):
            return value.cpu()
        return place.given(value, addressed=at in residency.addressed)


def _result(value: Any, place: Place, *, resident: bool) -> Any:
    if isinstance(value, GivenTensor):
        return value.given if resident else value.tensor()
    if isinstance(value, DeferredValue):
        direct = value.direct if resident else value.tensor()
        if isinstance(direct, BufferOutput):
            return place.result(direct.buffer, direct.spec)
        value = direct
    if resident and isinstance(value, torch.Tensor) and value.device.type == "cpu":
        return place.to_device(value)
    return value
