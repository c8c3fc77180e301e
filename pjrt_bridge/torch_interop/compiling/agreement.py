"""Agreement of processes on a graph with collective operations, which one client then runs.

Where a client spans processes, each of them is a replica of one program, which all of them have to
compile. But each process traces a graph of its own: a rank may be a number in it, and only the
process groups that this process belongs to have names. So before such a graph is placed, the
processes exchange what they have traced, through the client's key-value store. If the graphs are
equal but for the names of groups, their collective operations become StableHLO's; if not, all
processes leave them to PyTorch.
"""

from __future__ import annotations

import hashlib
import json
import threading
import weakref
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx

from pjrt_bridge.errors import ProgramError
from pjrt_bridge.runtime import Client, CompileOptions, Device
from pjrt_bridge.torch_interop import compat, nodes
from pjrt_bridge.torch_interop.compat import process_groups
from pjrt_bridge.torch_interop.emit.node_lowering import Lookup, order_of_input
from pjrt_bridge.torch_interop.lowering.collectives import GroupsByName, collective_lowering
from pjrt_bridge.torch_interop.lowering.registry import Lowering
from pjrt_bridge.torch_interop.placement.collectives import group_name

PATIENCE = 300.0
"""Seconds that a process waits for the others, which may have to compile before."""

_NUMBERS = (bool, int, float, complex, torch.SymInt, torch.SymFloat, torch.SymBool)

_ADDRESSING = "aten.as_strided"
"""Operators that are lowered where their argument is a whole storage (`Context.input_order`)."""

_lock = threading.Lock()
_counts: weakref.WeakKeyDictionary[Client, Counter[str]] = weakref.WeakKeyDictionary()


@dataclass(frozen=True)
class Agreement:
    """The agreement of the processes on one graph.

    Attributes:
        devices: global ids of the devices of the replicas, one of each process.
        groups: replicas by the names that process groups have in this process; none where the
            processes do not agree.
    """

    devices: tuple[int, ...]
    groups: GroupsByName

    def lookup(self, other: Lookup) -> Lookup:
        """Finds lowerings of collective operations, too."""

        def find(name: str) -> Lowering | None:
            return collective_lowering(name, self.groups) or other(name)

        return find

    def options(self, options: CompileOptions) -> CompileOptions:
        """Options of a program that all processes run together."""
        assignment = [[device] for device in self.devices]
        return replace(options, num_replicas=len(self.devices), device_assignment=assignment)


def agree(graph: fx.Graph, client: Client, device: Device | None) -> Agreement | None:
    """Agree on a graph with the processes of its collective operations.

    All of them call this for the same graphs in the same order.

    Args:
        graph: all passes were applied to it.
        client: that the graph is compiled for.
        device: of this process; None: the client's first.

    Returns:
        None where there is nothing to agree on: no collective operation, a client of this process
        alone, or a process group that this process does not know.

    Raises:
        ProgramError: a process did not come in time, the store failed, or the client numbers the
            processes in another way than torch.distributed.
    """
    found = [node for node in graph.nodes if nodes.exchanges(node)]
    if not found or client.store is None:
        return None
    groups = {name: process_groups.ranks(name) for name in map(group_name, found) if name}
    known = {name: ranks for name, ranks in groups.items() if ranks is not None}
    if len(known) < len(groups) or not known or len({*map(group_name, found)}) > len(groups):
        return None
    _check_rank(client)
    first, *others = known.values()
    everybody = tuple(range(process_groups.world_size()))
    members = everybody if any(other != first for other in others) else first
    own = {
        "graph": hashlib.sha256(_description(graph, list(known)).encode()).hexdigest(),
        "groups": list(known.values()),
        "device": (device or client.devices[0]).id,
    }
    answers = _exchange(client, members, own)
    together: dict[str, Sequence[Sequence[int]]] = {}
    if all(answer["graph"] == own["graph"] for answer in answers):
        for at, name in enumerate(known):
            replicas = _replicas([answer["groups"][at] for answer in answers], members)
            if replicas is not None:
                together[name] = replicas
    return Agreement(tuple(answer["device"] for answer in answers), together)


def _check_rank(client: Client) -> None:
    rank, count = process_groups.rank(), process_groups.world_size()
    processes = len({device.process_index for device in client.all_devices})
    if (rank, count) != (client.process_index, processes):
        raise ProgramError(
            f"collective operations over a client that spans processes: found process "
            f"{client.process_index} of {processes} in the client, expected {rank} of {count} as "
            "in torch.distributed"
        )


def _exchange(
    client: Client, members: Sequence[int], own: Mapping[str, Any]
) -> list[dict[str, Any]]:
    store = client.store
    assert store is not None
    listed = ",".join(map(str, members))
    with _lock:
        counts = _counts.setdefault(client, Counter())
        number = counts[listed]
        counts[listed] += 1
    key = f"collectives/{listed}/{number}"
    found = []
    try:
        store.put(f"{key}/{client.process_index}", json.dumps(own).encode())
        for rank in members:
            found.append(json.loads(store.get(f"{key}/{rank}", PATIENCE)))
    except TimeoutError:
        raise ProgramError(
            f"graph {number} with collective operations over the processes {listed}: found none of "
            f"process {rank} within {PATIENCE:g} s, expected that all of them compile the same "
            "graphs in the same order"
        ) from None
    except ConnectionError as error:
        raise ProgramError(
            f"graph {number} with collective operations over the processes {listed}: the store "
            f"that they share failed: {error}"
        ) from error
    return found


def _replicas(
    groups: Sequence[Sequence[int]], members: Sequence[int]
) -> Sequence[Sequence[int]] | None:
    """The groups of all processes as replicas; None where they do not divide the processes."""
    distinct = sorted({tuple(group) for group in groups})
    if sorted(rank for group in distinct for rank in group) != sorted(members):
        return None
    if len({len(group) for group in distinct}) != 1:
        return None
    return [[members.index(rank) for rank in group] for group in distinct]


def _description(graph: fx.Graph, groups: Sequence[str]) -> str:
    """A text that is equal for equal graphs, whatever their nodes and groups are called."""
    numbers: dict[fx.Node, str] = {}
    lines = []
    for node in graph.nodes:
        numbers[node] = f"%{len(numbers)}"
        args: Any = fx.map_arg((node.args, node.kwargs), numbers.__getitem__)
        if nodes.exchanges(node):
            name = group_name(node)
            args = repr(args).replace(repr(name), f"group {groups.index(name or '')}")
        target = node.target if node.op == "call_function" else ""
        addresses = str(target).startswith(_ADDRESSING)
        order = order_of_input(node).name if addresses else ""
        promised = _promised(compat.promise(node), groups)
        lines.append(f"{node.op} {target} {args} {promised} {order}")
    return "\n".join(lines)


def _promised(promise: Any, groups: Sequence[str]) -> str:
    if isinstance(promise, torch.Tensor):
        # Where a part begins in its memory is another number in each process that has a part.
        return f"{promise.dtype} {tuple(promise.shape)} {promise.stride()}"
    if isinstance(promise, (tuple, list)):
        return f"({', '.join(_promised(item, groups) for item in promise)})"
    if isinstance(promise, fx.GraphModule):
        return f"{{{_description(promise.graph, groups)}}}"
    # Other objects, such as the mesh of a DTensor, differ by their rank and address.
    return repr(promise) if isinstance(promise, _NUMBERS) else type(promise).__name__
