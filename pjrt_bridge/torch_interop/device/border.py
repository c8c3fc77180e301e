"""Graphs over resident tensors: their values are on the device before a call and stay there.

A graph of resident tensors is compiled as one of host tensors. At its border a resident argument
goes in as the buffer that it is, and a result that the graph promises on the device comes out as
a resident tensor; only what a host segment reads, or gives, crosses.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import fx
from torch.fx.node import map_aggregate

from pjrt_bridge.errors import DeviceError
from pjrt_bridge.mixed.execution import CallRecord, DeferredValue, ResidentValue
from pjrt_bridge.mixed.launchers import BufferOutput
from pjrt_bridge.mixed.records import GraphRecord
from pjrt_bridge.runtime.dispatch.value_spec import ValueSpec
from pjrt_bridge.runtime.objects.mesh_program import AnyBuffer
from pjrt_bridge.torch_interop import compat
from pjrt_bridge.torch_interop.bind.adapter import TorchAdapter
from pjrt_bridge.torch_interop.bind.graphs import PlainGraph, run
from pjrt_bridge.torch_interop.device import transfer
from pjrt_bridge.torch_interop.device.naming import NAME
from pjrt_bridge.torch_interop.device.shortcuts import GraphShortcut
from pjrt_bridge.torch_interop.device.storage import (
    contents_of,
    geometry_of,
    is_divided,
    is_resident,
    resident_tensor,
)
from pjrt_bridge.torch_interop.nodes import is_mutation
from pjrt_bridge.torch_interop.placement.surroundings import addressed


class ResidentAdapter(TorchAdapter):
    """Segments between resident values take and give buffers."""

    def exchange(self) -> None:
        """The dispatcher in C reads and makes tensors of the host."""


RESIDENT = ResidentAdapter()


@dataclass(frozen=True)
class Residency:
    """The arguments and results of a graph that are on the device.

    Attributes:
        index: of the device.
        results: for each result whether it is promised there.
        written: positions of arguments that the graph writes into.
        floating: positions of resident arguments of real floating types.
        complex: of complex types.
        addressed: of those whose memory the graph addresses, elements around them included.
    """

    index: int
    results: tuple[bool, ...]
    written: tuple[int, ...]
    floating: tuple[int, ...]
    complex: tuple[int, ...]
    addressed: frozenset[int]

    @staticmethod
    def of(graph: fx.Graph) -> Residency | None:
        """The residency of a graph; None where all its values are the host's.

        Raises:
            DeviceError: values on several devices.
        """
        found = {
            promise.device.index or 0
            for node in graph.nodes
            for promise in compat.tree_leaves(compat.promise(node))
            if is_resident(promise)
        }
        if not found:
            return None
        if len(found) > 1:
            names = ", ".join(f"{NAME}:{index}" for index in sorted(found))
            raise DeviceError(f"one graph computes with tensors on several devices: {names}")
        placeholders = graph.find_nodes(op="placeholder")
        positions = {node: at for at, node in enumerate(placeholders)}
        (output,) = graph.find_nodes(op="output")
        return Residency(
            found.pop(),
            tuple(
                isinstance(item, fx.Node) and is_resident(compat.promise(item))
                for item in output.args[0]
            ),
            tuple(
                positions[node.args[0]]
                for node in graph.nodes
                if is_mutation(node) and node.args[0] in positions
            ),
            _resident_at(placeholders, lambda dtype: dtype.is_floating_point),
            _resident_at(placeholders, lambda dtype: dtype.is_complex),
            frozenset(map(positions.__getitem__, addressed(graph))),
        )

    def has_bits(self, arguments: Sequence[Any]) -> bool:
        """Whether the memory of an argument holds its values conjugated or negated."""
        return any(map(_IS_NEG, map(arguments.__getitem__, self.floating))) or any(
            arguments[at].is_conj() or arguments[at].is_neg() for at in self.complex
        )


_IS_NEG = torch.Tensor.is_neg


def _resident_at(
    placeholders: Sequence[fx.Node], chosen: Callable[[torch.dtype], bool]
) -> tuple[int, ...]:
    promises = map(compat.promise, placeholders)
    return tuple(
        at for at, promise in enumerate(promises) if is_resident(promise) and chosen(promise.dtype)
    )


def with_host_promises(module: fx.GraphModule) -> fx.GraphModule:
    """The graph as one of host tensors: promises, and the devices that operators are given."""
    memories: dict[int, torch.Tensor] = {}
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    graph.graph_copy(module.graph, copies)
    for old, new in copies.items():
        new.meta = dict(old.meta)
        if "val" in new.meta:
            new.meta["val"] = map_aggregate(
                new.meta["val"], lambda item: _host_promise(item, memories)
            )
        new.args = map_aggregate(new.args, _host_device)
        new.kwargs = map_aggregate(new.kwargs, _host_device)
    (output,) = module.graph.find_nodes(op="output")
    graph.output(fx.map_arg(output.args[0], copies.__getitem__))
    made = fx.GraphModule(module, graph)
    for node in graph.find_nodes(op="get_attr"):
        held = getattr(module, str(node.target), None)
        if isinstance(held, fx.GraphModule):
            # Of control flow.
            setattr(made, str(node.target), with_host_promises(held))
            continue
        held = compat.promise(node)
        if is_resident(held):
            with compat.real_tensors():
                setattr(made, str(node.target), transfer.to_host(held))
    return made


def _host_device(value: Any) -> Any:
    if isinstance(value, torch.device) and value.type == NAME:
        return torch.device("cpu")
    return value


def _host_promise(promise: Any, memories: dict[int, torch.Tensor]) -> Any:
    if not is_resident(promise) or not isinstance(promise, compat.FakeTensor):
        return promise
    # Promises that share memory go on to do so.
    identity = compat.storage_identity(promise)
    assert identity is not None
    with promise.fake_mode:
        memory = memories.get(identity)
        if memory is None:
            count = promise.untyped_storage().nbytes()
            memory = memories[identity] = torch.empty((count,), dtype=torch.uint8, device="cpu")
        made = torch.empty((0,), dtype=promise.dtype, device="cpu")
        return made.set_(
            memory.untyped_storage(), promise.storage_offset(), promise.shape, promise.stride()
        )


class ResidentArgument(ResidentValue):
    """A resident tensor that a graph is given.

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
    def _values(self) -> torch.Tensor:
        """It, or a copy whose memory holds its values: others are conjugated or negated there."""
        if self.given.is_conj() or self.given.is_neg():
            return self.given.detach().resolve_conj().resolve_neg()
        return self.given

    def buffer_as(self, spec: ValueSpec) -> AnyBuffer:
        """Its elements, lying as a program takes them."""
        return transfer.buffer_as(self._values, spec)

    def tensor(self) -> torch.Tensor:
        """A copy in host memory; waits for the values."""
        if self.host is None:
            self.host = (
                transfer.to_host_in_memory(self.given)
                if self._addressed
                else transfer.to_host(self._values)
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


def replace_elements(tensor: torch.Tensor, buffer: AnyBuffer, spec: ValueSpec) -> None:
    """Write into a resident tensor what a program gave for it."""
    contents = contents_of(tensor)
    geometry = geometry_of(tensor, contents)
    if geometry is None and spec.order is None and buffer.type == contents.type:
        contents.assign(buffer)
        return
    made = resident_tensor(buffer, spec, contents.index)
    row_major = ValueSpec.row_major(spec.type)
    if geometry is None:
        contents.assign(transfer.buffer_as(made, ValueSpec.row_major(contents.type)))
    elif _fills(tensor, spec) and spec.memory == contents.type:
        contents.assign(buffer)
    else:
        transfer.write(contents, geometry, transfer.buffer_as(made, row_major))


def _fills(tensor: torch.Tensor, spec: ValueSpec) -> bool:
    """Whether a tensor is all of its storage, lying as a spec says."""
    return not tensor.storage_offset() and tensor.stride() == spec.strides


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


class ResidentGraph:
    """A compiled graph of resident tensors.

    Args:
        graph: the same over host tensors.
        residency: what is where.
        divided: gives the same for tensors that are divided over a mesh; None: it is that.
    """

    def __init__(
        self,
        graph: PlainGraph,
        residency: Residency,
        divided: Callable[[], ResidentGraph] | None = None,
    ) -> None:
        self._graph = graph
        self._residency = residency
        self.record: GraphRecord = graph.record
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
        values = [self._given(at, value) for at, value in enumerate(arguments)]
        arguments.clear()
        from_host = any(isinstance(value, torch.Tensor) for value in values)
        written = [values[at] for at in self._residency.written]
        outputs = self._graph.start(list(values), call)
        if from_host:
            # The program may read them in place, and their owner may write into them.
            call.finish()
        results = [
            self._result(item, resident=resident)
            for item, resident in zip(outputs, self._residency.results, strict=True)
        ]
        for value in written:
            # PyTorch computed it, in a copy.
            wrote = isinstance(value, ResidentArgument) and not value.replaced
            if wrote and value.host is not None:
                buffer = transfer.put(value.host, self._residency.index)
                value.replace(buffer, ValueSpec.row_major(buffer.type))
        call.let_go()
        return results

    def _given(self, at: int, value: Any) -> Any:
        if not is_resident(value):
            return value
        if (value.device.index or 0) != self._residency.index:
            raise DeviceError(
                f"found a tensor of shape {tuple(value.shape)} on device {value.device}, expected "
                f"all on {NAME}:{self._residency.index}"
            )
        return ResidentArgument(value, addressed=at in self._residency.addressed)

    def _result(self, value: Any, *, resident: bool) -> Any:
        if isinstance(value, ResidentArgument):
            return value.given if resident else value.tensor()
        if isinstance(value, DeferredValue):
            direct = value.direct if resident else value.tensor()
            if isinstance(direct, BufferOutput):
                return resident_tensor(direct.buffer, direct.spec, self._residency.index)
            value = direct
        if resident and isinstance(value, torch.Tensor) and not is_resident(value):
            return transfer.to_device(value, self._residency.index)
        return value
