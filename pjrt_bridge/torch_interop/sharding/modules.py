"""Dividing the parameters of a whole model, by a plan or by a rule."""

from __future__ import annotations

import torch
from torch import nn

from pjrt_bridge.errors import OptionError
from pjrt_bridge.torch_interop.meshes.mesh import BATCH_AXES, Mesh
from pjrt_bridge.torch_interop.resident.storages.storage import is_resident
from pjrt_bridge.torch_interop.sharding.marking import mark_sharding, sharding_of
from pjrt_bridge.torch_interop.sharding.plans import (
    AxisNames,
    ParallelPlan,
    check_divides,
    constrain_borders,
    divided_further,
    needs_axis,
    parameter_axes,
    plan_axis,
    read_plan,
)
from pjrt_bridge.torch_interop.sharding.styles import free_borders
from pjrt_bridge.wrong_arguments import checked


@checked
def parallelize(
    module: nn.Module, mesh: Mesh, plan: ParallelPlan | None = None, *, axis: str | None = None
) -> nn.Module:
    """Divide a model over a mesh by a plan: torch's parallel styles, and shardings of parameters.

    Its parameters and buffers are put on the mesh, those that the plan does not name whole, unless
    they are divided already; modules constrain what they take and give. The model goes on to see
    whole shapes. With the option `mesh` of the backend batches are divided over the other axes.
    A model over another mesh is moved to this one; compile it again then.

    Args:
        module: on the host or on device `pjrt`; changed in place.
        mesh: the devices.
        plan: `ColwiseParallel`, `RowwiseParallel`, `SequenceParallel`, `PrepareModuleInput`,
            `PrepareModuleOutput` or `PrepareModuleInputOutput` objects; None: all is whole.
        axis: that the plan divides over; None: `tp`, or the only axis that divides no batch.

    Returns:
        The module.

    Raises:
        OptionError: a name that no module or parameter has, a style or placement that does not fit
            it, or no axis.
        ProgramError: a dimension that does not divide, or an unknown axis.
    """
    planned = read_plan(module, plan)
    over = plan_axis(tuple(mesh.grid.sizes), axis, mesh) if needs_axis(plan) else ""
    # Nothing is changed before all of it was found to be possible.
    specs: dict[int, AxisNames] = {}
    for name, parameter, axes in parameter_axes(planned, over):
        check_divides(parameter.shape, mesh.grid, axes, name)
        specs[id(parameter)] = axes
    for parameter in module.parameters():
        if id(parameter) in specs or not _is_over(parameter, mesh):
            mark_sharding(parameter, mesh, specs.get(id(parameter), ()))
    _put_buffers(module, mesh)
    free_borders(module, mesh.grid)
    constrain_borders(planned, mesh, over)
    return module


@checked
def fully_shard(module: nn.Module, mesh: Mesh, *, axis: str | None = None) -> nn.Module:
    """Divide each parameter of a model over an axis as well, and with it what optimizers keep.

    A parameter is divided in its first dimension that the axis divides, one that is whole before
    one that is not; where no dimension does, it stays as it is. Buffers are whole. A model over
    another mesh is moved to this one; compile it again then.

    Args:
        module: on the host or on device `pjrt`, may be divided by `parallelize`; changed in place.
        mesh: the devices.
        axis: one that divides batches; None: `fsdp`, or `dp` where there is none.

    Returns:
        The module.

    Raises:
        OptionError: the mesh has no such axis.
    """
    sizes = mesh.grid.sizes
    chosen = axis or next((name for name in reversed(BATCH_AXES) if name in sizes), None)
    if chosen not in sizes:
        names = " or ".join(map(repr, BATCH_AXES if axis is None else (axis,)))
        raise OptionError(f"fully_shard: found {mesh}, expected one with an axis {names}")
    for parameter in module.parameters():
        held = sharding_of(parameter) if _is_over(parameter, mesh) else None
        axes: AxisNames = [[] for _ in range(parameter.dim())]
        if held is not None:
            axes = [[item.name for item in divided] for divided in held.dimensions]
        mark_sharding(parameter, mesh, divided_further(parameter.shape, axes, sizes, chosen))
    _put_buffers(module, mesh)
    free_borders(module, mesh.grid)
    return module


def _is_over(tensor: torch.Tensor, mesh: Mesh) -> bool:
    held = sharding_of(tensor) if is_resident(tensor) else None
    return held is not None and held.mesh == mesh.grid


def _put_buffers(module: nn.Module, mesh: Mesh) -> None:
    made: dict[int, torch.Tensor] = {}
    for layer in module.modules():
        for name, tensor in layer.named_buffers(recurse=False):
            if not _is_over(tensor, mesh):
                if id(tensor) not in made:
                    made[id(tensor)] = mark_sharding(tensor, mesh, ())
                setattr(layer, name, made[id(tensor)])
