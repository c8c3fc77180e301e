"""Constraints: how a value within a model is divided.

A constraint is an operator of its own. In programs over a mesh it says how the partitioner has to
divide the value, and its gradient; anywhere else it changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from pjrt_bridge.errors import ProgramError
from pjrt_bridge.stablehlo.builder.builder import Value
from pjrt_bridge.stablehlo.sharding import mesh as grids
from pjrt_bridge.stablehlo.sharding.sharding import Sharding, Spec
from pjrt_bridge.torch_interop import compat
from pjrt_bridge.torch_interop.lowering.context import Context
from pjrt_bridge.torch_interop.lowering.registry import Lowering, find_lowering, lowering
from pjrt_bridge.torch_interop.meshes.mesh import Mesh
from pjrt_bridge.wrong_arguments import require

OPEN = "?"
"""Entry of a spec, or last of its axes: the partitioner may divide the dimension further."""

NAME = "pjrt_bridge_sharding.constraint.default"
_OPERATOR = "pjrt_bridge_sharding::constraint"


@dataclass(frozen=True)
class Constraint:
    """A constraint: the sharding that it asks for, and what it leaves open.

    Attributes:
        sharding: the axes that it names.
        open: dimensions that may be divided further.
        replicated: axes that may not divide the value.
    """

    sharding: Sharding
    open: frozenset[int]
    replicated: tuple[str, ...]

    @staticmethod
    def parse(rank: int, mesh: str, spec: Sequence[str], replicated: Sequence[str]) -> Constraint:
        """A constraint on a value, from its rank and the arguments of the operator.

        Raises:
            ProgramError: see `shard_constraint`.
        """
        grid = grids.Mesh.read(mesh)
        entries = [entry.split("+") if entry else [] for entry in spec]
        stated = [[name for name in names if name != OPEN] for names in entries]
        sharding = Sharding.of(grid, stated, rank)
        for name in replicated:
            if name not in grid.sizes:
                raise ProgramError(
                    f"sharding: found {name!r} among the axes that divide nothing, {grid} has "
                    f"{', '.join(grid.sizes)}"
                )
            if any(name in names for names in stated):
                raise ProgramError(f"sharding: {name!r} divides a dimension, and nothing")
        open = {at for at, names in enumerate(entries) if OPEN in names}
        return Constraint(sharding, frozenset(open), tuple(replicated))

    def over(self, before: Sharding | None) -> Sharding:
        """The sharding that it asks for of an array that is divided, or is not."""
        if before is None or before.mesh != self.sharding.mesh:
            return self.sharding
        named = {axis.name for axes in self.sharding.dimensions for axis in axes}
        named.update(self.replicated)
        return Sharding(
            self.sharding.mesh,
            tuple(
                (*axes, *(axis for axis in had if at in self.open and axis.name not in named))
                for at, (axes, had) in enumerate(
                    zip(self.sharding.dimensions, before.dimensions, strict=True)
                )
            ),
        )


def shard_constraint(
    tensor: torch.Tensor, mesh: Mesh | grids.Mesh, spec: Spec, *, replicated: Sequence[str] = ()
) -> torch.Tensor:
    """Say within a model how a value is divided over a mesh, and its gradient.

    In a graph over a mesh the partitioner divides the value so; a tensor on the device is divided
    at once. Anywhere else the tensor is given back as it is.

    Args:
        tensor: any.
        mesh: the devices; a mesh of programs (`pjrt_bridge.stablehlo.Mesh`) where there are none.
        spec: as for `mark_sharding`; `OPEN`, alone or as the last axis of an entry, leaves a
            dimension to the partitioner.
        replicated: axes that do not divide it, whatever is open.

    Returns:
        The same elements.

    Raises:
        ArgumentError: no tensor, or no sequence.
        ProgramError: an unknown axis, one that is used twice, more entries than dimensions, or a
            dimension that does not divide. Where its size is known in calls alone, it is whole
            instead.
    """
    if not torch.compiler.is_compiling():
        require(tensor, torch.Tensor, "shard_constraint: tensor")
        require(spec, (tuple, list), "shard_constraint: spec")
    entries = [
        "" if item is None else item if isinstance(item, str) else "+".join(item) for item in spec
    ]
    listed = (mesh if isinstance(mesh, grids.Mesh) else mesh.grid).listed
    if torch.compiler.is_compiling() or tensor.device.type != "cpu":
        made: torch.Tensor = _constrain(tensor, listed, entries, list(replicated))
        return made
    found = Constraint.parse(tensor.dim(), listed, entries, replicated)
    found.sharding.shard_shape(tensor.shape)
    return tensor


def constrained_mesh(graph: fx.Graph) -> grids.Mesh | None:
    """The mesh that the constraints of a graph name; None where it has none.

    Raises:
        ProgramError: they name several.
    """
    found: dict[grids.Mesh, fx.Node] = {}
    for node in graph.find_nodes(op="call_function", target=_constrain):
        made = _constraint_of(node)
        found.setdefault(made.sharding.mesh, node)
    if len(found) > 1:
        names = ", ".join(f"{mesh} ({node.name})" for mesh, node in found.items())
        raise ProgramError(f"constraints of one graph name several meshes, expected one: {names}")
    return next(iter(found), None)


def move_constraints(graph: fx.Graph, mesh: grids.Mesh) -> None:
    """Make the constraints of a graph ones over another mesh, in place.

    Axes that it does not have divide nothing.

    Args:
        graph: whose constraints may name any mesh.
        mesh: has some of its axes, of any size.
    """
    for node in graph.find_nodes(op="call_function", target=_constrain):
        asked: Any = node.args
        tensor, _, spec, replicated = asked
        kept = [
            "+".join(name for name in entry.split("+") if name == OPEN or name in mesh.sizes)
            for entry in spec
        ]
        node.args = (tensor, mesh.listed, kept, [name for name in replicated if name in mesh.sizes])


def check_sizes(graph: fx.Graph) -> None:
    """Refuse constraints that divide a dimension of known size which does not divide.

    Args:
        graph: before sizes of calls are put into it.

    Raises:
        ProgramError: there is one.
    """
    for node in graph.find_nodes(op="call_function", target=_constrain):
        promise = compat.promise(node)
        if not compat.is_symbolic(promise):
            _constraint_of(node).sharding.shard_shape(promise.shape)


def _constraint_of(node: fx.Node) -> Constraint:
    asked: Any = node.args[1:]
    return Constraint.parse(compat.promise(node).dim(), *asked)


def lowering_over_mesh(name: str) -> Lowering | None:
    """The portable lowering of an operator, for programs that a partitioner divides."""
    return _lower_over_mesh if name == NAME else find_lowering(name)


def _lower_over_mesh(
    context: Context, x: Value, mesh: str, spec: Sequence[str], replicated: Sequence[str]
) -> Value:
    found = Constraint.parse(len(x.shape), mesh, spec, replicated)
    sharding = found.sharding.as_far_as_it_divides(x.shape)
    return context.b.constrain(x, sharding, open=found.open, replicated=found.replicated)


@lowering(NAME)
def _lower(
    context: Context, x: Value, mesh: str, spec: Sequence[str], replicated: Sequence[str]
) -> Value:
    """The value as it is: a program on one device."""
    return x


def of_device(kernel: Callable[..., torch.Tensor]) -> None:
    """Give the operator its kernel for tensors on the device."""
    torch.library.impl(_OPERATOR, "privateuseone", kernel)


def _fake(
    x: torch.Tensor, mesh: str, spec: Sequence[str], replicated: Sequence[str]
) -> torch.Tensor:
    Constraint.parse(x.dim(), mesh, spec, replicated)
    return torch.empty_like(x)


def _remember(ctx: Any, inputs: Any, output: torch.Tensor) -> None:
    ctx.asked = inputs[1:]


def _gradient(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
    return _constrain(gradient, *ctx.asked), None, None, None


def _over_rows(
    info: Any, dims: Sequence[Any], x: torch.Tensor, mesh: str, spec: Sequence[str], *others: Any
) -> tuple[torch.Tensor, int]:
    """The constraint under vmap: the partitioner decides how the rows are divided."""
    return _constrain(x.movedim(dims[0], 0), mesh, [OPEN, *spec], *others), 0


def _define() -> Any:
    torch.library.define(_OPERATOR, "(Tensor x, str mesh, str[] spec, str[] replicated) -> Tensor")
    torch.library.impl(_OPERATOR, "default", lambda x, *asked: x.clone())
    torch.library.register_fake(_OPERATOR, _fake)
    made = compat.operator(NAME)
    assert made is not None
    compat.register_gradients(made, _gradient, _remember)
    torch.library.register_vmap(_OPERATOR, _over_rows)
    return made


_constrain: Any = _define()
