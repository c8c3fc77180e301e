"""Parallel plans: by torch's parallel styles, which mesh axis divides which parameter.

Nothing is put anywhere here: meshes may be of devices that are not there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase

import torch
from torch import nn
from torch.distributed.tensor.parallel import ParallelStyle

from pjrt_bridge.errors import OptionError, ProgramError
from pjrt_bridge.stablehlo.sharding import mesh as grids
from pjrt_bridge.stablehlo.sharding.sharding import Sharding
from pjrt_bridge.torch_interop.sharding.mesh import BATCH_AXES, Mesh
from pjrt_bridge.torch_interop.sharding.styles import StyleEffect, constrain_border, effect_of

ParallelPlan = ParallelStyle | Mapping[str, ParallelStyle]
"""A style for a module itself, or for those below it by their names, as torch's
`parallelize_module` takes them: `"layers.*.up"`."""

AxisNames = list[list[str]]
"""For each dimension the names of the axes that divide it."""


Planned = tuple[str, nn.Module, StyleEffect]
"""A module that a plan names: its name, itself, and what the plan asks of it."""


def read_plan(module: nn.Module, plan: ParallelPlan | None) -> list[Planned]:
    """The modules that a plan names, in its order.

    Raises:
        OptionError: a name that no module has, or a style that does not fit a module.
    """
    if plan is None:
        return []
    return [
        (name, layer, effect_of(style, layer, name)) for name, layer, style in _styles(module, plan)
    ]


def parameter_axes(
    planned: Sequence[Planned], axis: str
) -> Iterator[tuple[str, torch.Tensor, AxisNames]]:
    """The parameters that a plan names: name, tensor, and how the axis divides it."""
    for name, layer, effect in planned:
        for key, at in effect.parameters.items():
            parameter = layer.get_parameter(key)
            axes: AxisNames = [[axis] if dim == at else [] for dim in range(parameter.dim())]
            yield f"{name}.{key}".lstrip("."), parameter, axes


def constrain_borders(planned: Sequence[Planned], mesh: Mesh | grids.Mesh, axis: str) -> None:
    """Have the modules that a plan names constrain their inputs and outputs, in each call."""
    for _, layer, effect in planned:
        constrain_border(layer, effect, mesh, axis)


def plan_axis(axes: Sequence[str], axis: str | None, mesh: object) -> str:
    """The axis that a plan divides over.

    Args:
        axes: of the mesh.
        axis: that the user names; None: `tp`, or the only one that divides no batch.
        mesh: for the message.

    Raises:
        OptionError: there is none.
    """
    if axis is None:
        others = [name for name in axes if name not in BATCH_AXES]
        axis = "tp" if "tp" in axes else others[0] if len(others) == 1 else None
    if axis is None or axis not in axes:
        asked = "one to divide over" if axis is None else repr(axis)
        raise OptionError(f"parallelize: {mesh} has no axis {asked}; name it as axis=")
    return axis


def divided_further(
    shape: Sequence[int], axes: AxisNames, sizes: Mapping[str, int], axis: str
) -> AxisNames:
    """How an array is divided over one axis more: in its first dimension that the axis divides.

    One that is whole comes before one that is not; where no dimension does, all stays as it is.
    """
    if any(axis in names for names in axes):
        return axes
    found = [list(names) for names in axes]
    for at in sorted(range(len(found)), key=lambda at: (len(found[at]), at)):
        parts = sizes[axis]
        for name in found[at]:
            parts *= sizes[name]
        if shape[at] % parts == 0 and shape[at]:
            found[at].append(axis)
            break
    return found


def check_divides(shape: Sequence[int], mesh: grids.Mesh, axes: AxisNames, name: str) -> Sharding:
    """The sharding of a parameter.

    Raises:
        ProgramError: a dimension that does not divide; the text names the parameter.
    """
    try:
        sharding = Sharding.of(mesh, axes, len(shape))
        sharding.shard_shape(shape)
    except ProgramError as error:
        raise ProgramError(f"parameter {name!r}: {error}") from None
    return sharding


def _styles(
    module: nn.Module, plan: ParallelPlan
) -> Iterator[tuple[str, nn.Module, ParallelStyle]]:
    """Each module of a plan, with its name and style."""
    if isinstance(plan, ParallelStyle):
        yield "", module, plan
        return
    if not isinstance(plan, Mapping):
        raise OptionError(
            f"plan: found {plan!r}, expected a parallel style, or styles by names of modules"
        )
    for pattern, style in plan.items():
        for name, layer in _matching(module, pattern):
            yield name, layer, style


def _matching(module: nn.Module, pattern: str) -> list[tuple[str, nn.Module]]:
    found = [("", module)]
    for token in pattern.split(".") if pattern else ():
        children = [
            (f"{name}.{child}".lstrip("."), layer)
            for name, parent in found
            for child, layer in parent.named_children()
        ]
        matching = [item for item in children if fnmatchcase(item[0].rpartition(".")[2], token)]
        if not matching:
            there = ", ".join(name for name, _ in children[:8]) or "nothing"
            raise OptionError(
                f"plan: no module matches {token!r} of {pattern!r}; found there: {there}"
            )
        found = matching
    return found
