"""Collective operations of torch.distributed as StableHLO's, where one client spans the processes.

Each process is a replica of one program. These lowerings are not in the registry: they need the
groups of replicas, which are known once the processes have agreed on a graph
(`pjrt_bridge.torch_interop.compiling.agreement`). Elsewhere PyTorch runs the operators.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from pjrt_bridge.stablehlo.builder.builder import Value
from pjrt_bridge.stablehlo.builder.collectives import Combine, ReplicaGroups
from pjrt_bridge.torch_interop.lowering.context import Context
from pjrt_bridge.torch_interop.lowering.registry import Lowering, NotLowerable

GroupsByName = Mapping[str, ReplicaGroups]
"""For the name of a process group the replicas that are a group, and those of the groups that other
processes call by this name; all of one size."""


def collective_lowering(name: str, groups: GroupsByName) -> Lowering | None:
    """The lowering of a collective operation, or of a wait; None for any other operator.

    Args:
        name: such as `"_c10d_functional.all_reduce.default"`.
        groups: of the processes.
    """
    if name == "_c10d_functional.wait_tensor.default":
        return _wait
    found = _LOWERINGS.get(name)
    return None if found is None else partial(_grouped, found, groups)


def _grouped(
    lowering: Callable[..., Value | Sequence[Value]],
    groups: GroupsByName,
    c: Context,
    *args: object,
) -> Value | Sequence[Value]:
    *others, name = args
    if not isinstance(name, str) or name not in groups:
        raise NotLowerable("its graph is another one in other processes")
    return lowering(c, groups[name], *others)


def _wait(c: Context, x: Value) -> Value:
    # A program's values are complete.
    return x


def _all_reduce(c: Context, groups: ReplicaGroups, x: Value, reduction: str) -> Value:
    return _averaged(c, c.b.all_reduce(x, _combine(c, reduction, x), groups), reduction, groups)


def _all_gather(c: Context, groups: ReplicaGroups, x: Value, size: int) -> Value:
    return c.b.all_gather(x, 0, groups)


def _reduce_scatter(
    c: Context, groups: ReplicaGroups, x: Value, reduction: str, size: int
) -> Value:
    scattered = c.b.reduce_scatter(x, _combine(c, reduction, x), 0, groups)
    return _averaged(c, scattered, reduction, groups)


def _all_to_all(
    c: Context, groups: ReplicaGroups, x: Value, given: Sequence[int], taken: Sequence[int]
) -> Value:
    if len({*given, *taken}) > 1:
        raise NotLowerable(f"parts of different sizes: {list(taken)} and {list(given)}")
    return c.b.all_to_all(x, 0, 0, groups)


def _shard_dim_all_to_all(
    c: Context, groups: ReplicaGroups, x: Value, gathered: int, divided: int
) -> Value:
    return c.b.all_to_all(x, divided, gathered, groups)


def _broadcast(c: Context, groups: ReplicaGroups, x: Value, source: int) -> Value:
    # Few compilers have StableHLO's own operation for it.
    row = c.b.reshape(x, (1, *x.shape))
    rows = c.b.all_gather(row, 0, groups)
    ends = [source + 1, *x.shape]
    found = c.b.slice(rows, [source] + [0] * x.rank, ends, [1] * (x.rank + 1))
    return c.b.reshape(found, x.shape)


def _each(lowering: Callable[..., Value]) -> Callable[..., Sequence[Value]]:
    """The lowering of an operator over a list of tensors."""
    return lambda c, groups, xs, *others: [lowering(c, groups, x, *others) for x in xs]


def _combine(c: Context, reduction: str, x: Value) -> Combine:
    combine: Mapping[str, Combine] = {
        "sum": c.b.add,
        "avg": c.b.add,
        "product": c.b.multiply,
        "max": c.b.maximum,
        "min": c.b.minimum,
    }
    if reduction not in combine or x.dtype.is_bool or x.dtype.is_complex:
        raise NotLowerable(f"StableHLO has no reduction {reduction!r} of {x.dtype}")
    if reduction == "avg" and not x.dtype.is_float:
        raise NotLowerable(f"an average of {x.dtype}")
    return combine[reduction]


def _averaged(c: Context, total: Value, reduction: str, groups: ReplicaGroups) -> Value:
    if reduction != "avg":
        return total
    return c.b.divide(total, c.b.full(total.shape, len(groups[0]), total.dtype))


_LOWERINGS: Mapping[str, Callable[..., Value | Sequence[Value]]] = {
    "_c10d_functional.all_reduce.default": _all_reduce,
    "_c10d_functional.all_reduce_coalesced.default": _each(_all_reduce),
    "_c10d_functional.all_gather_into_tensor.default": _all_gather,
    "_c10d_functional.all_gather_into_tensor_coalesced.default": _each(_all_gather),
    "_c10d_functional.reduce_scatter_tensor.default": _reduce_scatter,
    "_c10d_functional.reduce_scatter_tensor_coalesced.default": _each(_reduce_scatter),
    "_c10d_functional.all_to_all_single.default": _all_to_all,
    "_c10d_functional.broadcast.default": _broadcast,
    "_dtensor.shard_dim_alltoall.default": _shard_dim_all_to_all,
}
