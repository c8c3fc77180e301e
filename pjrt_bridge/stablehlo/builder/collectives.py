"""Collective operations (StableHLO spec, "Ops"): values of several devices that run one program.

A group is a list of replicas that exchange values with each other; the groups of an operation
divide the replicas of the program. A program with such operations is compiled for as many replicas
(`CompileOptions.num_replicas`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from pjrt_bridge.errors import ProgramError
from pjrt_bridge.stablehlo.builder.elementwise import ElementwiseOps
from pjrt_bridge.stablehlo.builder.values import Value, check_dims, scalars
from pjrt_bridge.stablehlo.types import TensorType
from pjrt_bridge.wrong_arguments import checked_methods

ReplicaGroups = Sequence[Sequence[int]]
"""Replicas by group, in the order of their parts; all groups have one size."""

Combine = Callable[[Value, Value], Value]
"""From two scalars to one; associative and commutative."""


@checked_methods
class CollectiveOps(ElementwiseOps):
    """Operations that exchange values within groups of replicas."""

    def all_reduce(self, x: Value, combine: Combine, groups: ReplicaGroups) -> Value:
        """What `combine` makes of the values of all replicas of a group, for each element.

        Raises:
            ProgramError: groups of several sizes, or a replica in two of them.
        """
        return self._reducing("all_reduce", x, combine, groups, {}, x.type)

    def all_gather(self, x: Value, dim: int, groups: ReplicaGroups) -> Value:
        """The values of all replicas of a group behind each other along a dimension.

        Raises:
            ProgramError: no such dimension, or groups as for `all_reduce`.
        """
        size = self._group_size("all_gather", groups)
        (at,) = check_dims("stablehlo.all_gather", "dim", (dim,), x.rank)
        attributes = {"all_gather_dim": self._int(at), "replica_groups": self._groups(groups)}
        found = _resized(x, at, x.shape[at] * size)
        return self._emit("stablehlo.all_gather", (x,), attributes, (found,))[0]

    def reduce_scatter(self, x: Value, combine: Combine, dim: int, groups: ReplicaGroups) -> Value:
        """The part of `all_reduce` that belongs to a replica: of equal parts along a dimension.

        Raises:
            ProgramError: no such dimension, a size that does not divide, or groups as for
                `all_reduce`.
        """
        op = "reduce_scatter"
        size = self._group_size(op, groups)
        (at,) = check_dims(f"stablehlo.{op}", "dim", (dim,), x.rank)
        part = _part(op, x, at, size)
        attributes = {"scatter_dimension": self._int(at)}
        return self._reducing(op, x, combine, groups, attributes, _resized(x, at, part))

    def all_to_all(self, x: Value, split_dim: int, concat_dim: int, groups: ReplicaGroups) -> Value:
        """Part `i` of each replica's value, for the replica at `i` of its group.

        Args:
            x: divided into as many parts as a group has replicas.
            split_dim: dimension that is divided.
            concat_dim: dimension along which the parts of all replicas are behind each other.
            groups: see `ReplicaGroups`.

        Raises:
            ProgramError: no such dimension, a size that does not divide, or groups as for
                `all_reduce`.
        """
        op = "all_to_all"
        size = self._group_size(op, groups)
        (split,) = check_dims(f"stablehlo.{op}", "split_dim", (split_dim,), x.rank)
        (concat,) = check_dims(f"stablehlo.{op}", "concat_dim", (concat_dim,), x.rank)
        shape = list(x.shape)
        shape[split] = _part(op, x, split, size)
        shape[concat] *= size
        attributes = {
            "split_dimension": self._int(split),
            "concat_dimension": self._int(concat),
            "split_count": self._int(size),
            "replica_groups": self._groups(groups),
        }
        return self._emit(
            f"stablehlo.{op}", (x,), attributes, (TensorType(tuple(shape), x.dtype),)
        )[0]

    def _reducing(
        self,
        op: str,
        x: Value,
        combine: Combine,
        groups: ReplicaGroups,
        attributes: dict[str, Any],
        result: TensorType,
    ) -> Value:
        self._group_size(op, groups)
        region = (scalars((x, x)), lambda pair: combine(*pair))
        attributes["replica_groups"] = self._groups(groups)
        return self._emit_with(f"stablehlo.{op}", (x,), [region], attributes, (result,))[0]

    def _group_size(self, op: str, groups: ReplicaGroups) -> int:
        sizes = {len(group) for group in groups}
        members = [replica for group in groups for replica in group]
        if len(sizes) != 1 or 0 in sizes or len(set(members)) != len(members):
            raise ProgramError(
                f"stablehlo.{op}: found the groups {[list(group) for group in groups]}, expected "
                "groups of one size, each replica in one of them"
            )
        return sizes.pop()

    def _groups(self, groups: ReplicaGroups) -> Any:
        array = np.asarray(groups, np.int64)
        tensor = self._ir.RankedTensorType.get(array.shape, self._i64, loc=self._unknown)
        return self._ir.DenseElementsAttr.get(array, type=tensor, context=self._context)


def _resized(x: Value, dim: int, size: int) -> TensorType:
    return TensorType((*x.shape[:dim], size, *x.shape[dim + 1 :]), x.dtype)


def _part(op: str, x: Value, dim: int, count: int) -> int:
    if x.shape[dim] % count:
        raise ProgramError(
            f"stablehlo.{op}: dimension {dim} of {x.type}: found size {x.shape[dim]}, expected a "
            f"multiple of {count}, the size of a group"
        )
    return x.shape[dim] // count
