"""Parallel plans: which mesh axis divides which parameter.

Torch's parallel styles say it of layers that they know, placements and specs of any parameter.
Nothing is put anywhere here: meshes may be of devices that are not there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import Placement, Replicate, Shard
from torch.distributed.tensor.parallel import ParallelStyle

from pjrt_bridge.errors import OptionError, ProgramError
from pjrt_bridge.stablehlo.sharding import mesh as grids
from pjrt_bridge.stablehlo.sharding.sharding import Sharding, Spec
from pjrt_bridge.torch_interop.meshes.mesh import BATCH_AXES, Mesh
from pjrt_bridge.torch_interop.sharding.styles import StyleEffect, constrain_border, effect_of

ParallelPlan = ParallelStyle | Mapping[str, ParallelStyle | Placement | Spec]
"""A style for a module itself, or for those below it by their names, as torch's
`parallelize_module` takes them: `"layers.*.up"`. By the name of a parameter, `Shard` or `Replicate`
for the plan's axis, or a spec as `mark_sharding` takes it, with axes of any name."""

AxisNames = list[list[str]]
"""For each dimension the names of the axes that divide it."""


Planned = tuple[str, nn.Module, StyleEffect]
"""A module that a plan names, or of whose parameters it names one: its name, itself, and what the
plan asks of it."""


def read_plan(module: nn.Module, plan: ParallelPlan | None) -> list[Planned]:
    """The modules that a plan names, in its order.

    Raises:
        OptionError: a name that no module or parameter has, a style that does not fit a module, or
            a placement that does not fit a parameter.
    """
    if plan is None:
        return []
    if isinstance(plan, ParallelStyle):
        return [("", module, effect_of(plan, module, ""))]
    if not isinstance(plan, Mapping):
        raise OptionError(
            f"plan: found {plan!r}, expected a parallel style, or styles by names of modules"
        )
    found: list[Planned] = []
    for pattern, entry in plan.items():
        if isinstance(entry, ParallelStyle):
            for name, layer in _matching(module, pattern):
                found.append((name, layer, effect_of(entry, layer, name)))
        else:
            found += _of_parameters(module, pattern, entry)
    return found


def needs_axis(plan: ParallelPlan | None) -> bool:
    """Whether a plan has more than specs, which name their axes."""
    if plan is None or isinstance(plan, ParallelStyle):
        return plan is not None
    return any(isinstance(entry, (ParallelStyle, Placement)) for entry in plan.values())


def parameter_axes(
    planned: Sequence[Planned], axis: str
) -> Iterator[tuple[str, torch.Tensor, AxisNames]]:
    """The parameters that a plan names: name, tensor, and how the axis divides it."""
    for name, layer, effect in planned:
        for key, at in effect.parameters.items():
            parameter = layer.get_parameter(key)
            axes: AxisNames = [[axis] if dim == at else [] for dim in range(parameter.dim())]
            yield f"{name}.{key}".lstrip("."), parameter, axes
        for key, spec in effect.specs.items():
            yield f"{name}.{key}".lstrip("."), layer.get_parameter(key), list(map(list, spec))


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


def _of_parameters(module: nn.Module, pattern: str, entry: object) -> Iterator[Planned]:
    """The modules whose parameters match a pattern, which an entry of a plan divides."""
    if not isinstance(entry, (Shard, Replicate, tuple, list)):
        raise OptionError(
            f"plan: found {entry!r} for {pattern!r}, expected a parallel style for modules; Shard, "
            "Replicate or a tuple of axes for parameters"
        )
    prefix, _, last = pattern.rpartition(".")
    owners = _matching(module, prefix)
    matching = [
        (name, layer, key, parameter)
        for name, layer in owners
        for key, parameter in layer.named_parameters(recurse=False)
        if fnmatchcase(key, last)
    ]
    if not matching:
        there = [key for _, layer in owners for key, _ in layer.named_parameters(recurse=False)]
        raise _no_match("parameter", last, pattern, there)
    for name, layer, key, parameter in matching:
        yield name, layer, _division(entry, key, parameter, f"{name}.{key}".lstrip("."))


def _division(
    entry: Shard | Replicate | Sequence[Any], key: str, parameter: torch.Tensor, name: str
) -> StyleEffect:
    """What an entry of a plan asks of a parameter."""
    rank, shape = parameter.dim(), list(parameter.shape)
    if isinstance(entry, Replicate):
        return StyleEffect({key: None})
    if isinstance(entry, Shard):
        if not -rank <= entry.dim < rank:
            raise OptionError(f"plan: found {entry} for {name!r}, whose shape is {shape}")
        return StyleEffect({key: entry.dim % rank})
    if len(entry) > rank:
        raise OptionError(
            f"plan: found {len(entry)} entries in {tuple(entry)} for {name!r}, whose shape is "
            f"{shape}"
        )
    spec = [[] if one is None else [one] if isinstance(one, str) else one for one in entry]
    for one in spec:
        if not (isinstance(one, (tuple, list)) and all(isinstance(axis, str) for axis in one)):
            raise OptionError(
                f"plan: found {one!r} in {tuple(entry)} for {name!r}, expected an axis, several or "
                "None"
            )
    return StyleEffect(specs={key: [*spec, *[()] * (rank - len(spec))]})


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
            raise _no_match("module", token, pattern, [name for name, _ in children])
        found = matching
    return found


def _no_match(kind: str, token: str, pattern: str, there: Sequence[str]) -> OptionError:
    listed = ", ".join(there[:8]) or "nothing"
    return OptionError(f"plan: no {kind} matches {token!r} of {pattern!r}; found there: {listed}")
