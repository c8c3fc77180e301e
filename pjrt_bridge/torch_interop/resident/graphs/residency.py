"""Which values of a graph are on a device: arguments and results, and the graph over host promises.

Tensors of device `pjrt` are, and those of torch's own devices whose memory the plugin uses, such as
CUDA's (`pjrt_bridge.torch_interop.shared`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.fx.node import map_aggregate

from pjrt_bridge.errors import DeviceError
from pjrt_bridge.torch_interop import compat
from pjrt_bridge.torch_interop.compat.devices.sparse_tensors import is_sparse
from pjrt_bridge.torch_interop.nodes import is_mutation
from pjrt_bridge.torch_interop.placement.surroundings import addressed


@dataclass(frozen=True)
class Residency:
    """The arguments and results of a graph that are on the device.

    Attributes:
        kind: torch's type of the device.
        index: of the device.
        results: for each result whether it is promised there.
        written: positions of arguments that the graph writes into.
        floating: positions of resident arguments of real floating types.
        complex: of complex types.
        addressed: of those whose memory the graph addresses, elements around them included.
    """

    kind: str
    index: int
    results: tuple[bool, ...]
    written: tuple[int, ...]
    floating: tuple[int, ...]
    complex: tuple[int, ...]
    addressed: frozenset[int]

    @staticmethod
    def of(graph: fx.Graph, kinds: Collection[str]) -> Residency | None:
        """The residency of a graph; None where it has no values on such devices.

        Args:
            graph: with promises.
            kinds: torch's types of the devices.

        Raises:
            DeviceError: values on several of these devices.
        """
        found = {
            (promise.device.type, promise.device.index or 0)
            for node in graph.nodes
            for promise in compat.tree_leaves(compat.promise(node))
            if isinstance(promise, torch.Tensor) and promise.device.type in kinds
        }
        if not found:
            return None
        if len(found) > 1:
            names = ", ".join(f"{kind}:{index}" for kind, index in sorted(found))
            raise DeviceError(f"one graph computes with tensors on several devices: {names}")
        ((kind, index),) = found
        placeholders = graph.find_nodes(op="placeholder")
        positions = {node: at for at, node in enumerate(placeholders)}
        (output,) = graph.find_nodes(op="output")
        return Residency(
            kind,
            index,
            tuple(
                isinstance(item, fx.Node) and is_on(compat.promise(item), kind)
                for item in output.args[0]
            ),
            tuple(
                positions[node.args[0]]
                for node in graph.nodes
                if is_mutation(node) and node.args[0] in positions
            ),
            _places_on(kind, placeholders, lambda dtype: dtype.is_floating_point),
            _places_on(kind, placeholders, lambda dtype: dtype.is_complex),
            frozenset(map(positions.__getitem__, addressed(graph))),
        )

    def has_bits(self, arguments: Sequence[Any]) -> bool:
        """Whether the memory of an argument holds its values conjugated or negated."""
        return any(map(_IS_NEG, map(arguments.__getitem__, self.floating))) or any(
            arguments[at].is_conj() or arguments[at].is_neg() for at in self.complex
        )


_IS_NEG = torch.Tensor.is_neg


def is_on(value: Any, kind: str) -> bool:
    """Whether a value is a tensor on a device of a type."""
    return isinstance(value, torch.Tensor) and value.device.type == kind


def _places_on(
    kind: str, placeholders: Sequence[fx.Node], chosen: Callable[[torch.dtype], bool]
) -> tuple[int, ...]:
    promises = map(compat.promise, placeholders)
    return tuple(
        at for at, promise in enumerate(promises) if is_on(promise, kind) and chosen(promise.dtype)
    )


def with_host_promises(
    module: fx.GraphModule, kind: str, to_host: Callable[[torch.Tensor], torch.Tensor]
) -> fx.GraphModule:
    """The graph as one of host tensors: promises, and the devices that operators are given.

    Args:
        module: the graph.
        kind: torch's type of the device that its values are on.
        to_host: a copy of a tensor there, for those that the graph holds.
    """

    def host_device(value: Any) -> Any:
        is_there = isinstance(value, torch.device) and value.type == kind
        return torch.device("cpu") if is_there else value

    memories: dict[int, torch.Tensor] = {}
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    graph.graph_copy(module.graph, copies)
    for old, new in copies.items():
        new.meta = dict(old.meta)
        if "val" in new.meta:
            new.meta["val"] = map_aggregate(
                new.meta["val"], lambda item: _host_promise(item, kind, memories)
            )
        new.args = map_aggregate(new.args, host_device)
        new.kwargs = map_aggregate(new.kwargs, host_device)
    (output,) = module.graph.find_nodes(op="output")
    graph.output(fx.map_arg(output.args[0], copies.__getitem__))
    made = fx.GraphModule(module, graph)
    for node in graph.find_nodes(op="get_attr"):
        held = getattr(module, str(node.target), None)
        if isinstance(held, fx.GraphModule):
            # Of control flow.
            setattr(made, str(node.target), with_host_promises(held, kind, to_host))
            continue
        held = compat.promise(node)
        if is_on(held, kind):
            with compat.real_tensors():
                setattr(made, str(node.target), to_host(held))
    return made


def _host_promise(promise: Any, kind: str, memories: dict[int, torch.Tensor]) -> Any:
    if not is_on(promise, kind) or not isinstance(promise, compat.FakeTensor):
        return promise
    if is_sparse(promise):
        return promise.to("cpu")
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
