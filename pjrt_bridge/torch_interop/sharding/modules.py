"""Dividing the parameters of a whole model, by a plan or by a rule."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor.parallel import ParallelStyle

from pjrt_bridge.errors import OptionError, ProgramError
from pjrt_bridge.stablehlo.sharding.sharding import Sharding
from pjrt_bridge.torch_interop.device.storage import is_resident
from pjrt_bridge.torch_interop.sharding.marking import mark_sharding, sharding_of
from pjrt_bridge.torch_interop.sharding.mesh import BATCH_AXES, Mesh
from pjrt_bridge.torch_interop.sharding.styles import Read, constrain_border, read
from pjrt_bridge.wrong_arguments import checked

Plan = ParallelStyle | Mapping[str, ParallelStyle]
"""A style for a module itself, or for those below it by their names, as torch's
`parallelize_module` takes them: `"layers.*.up"`."""


@checked
def parallelize(
    module: nn.Module, mesh: Mesh, plan: Plan | None = None, *, axis: str | None = None
) -> nn.Module:
    """Divide a model over a mesh by a plan of torch's parallel styles.

    Its parameters and buffers are put on the mesh, those that the plan does not name whole, unless
    they are divided already; modules constrain what they take and give. The model goes on to see
    whole shapes. With the option `mesh` of the backend batches are divided over the other axes.

    Args:
        module: on the host or on device `pjrt`; changed in place.
        mesh: the devices.
        plan: `ColwiseParallel`, `RowwiseParallel`, `SequenceParallel`, `PrepareModuleInput`,
            `PrepareModuleOutput` or `PrepareModuleInputOutput` objects; None: all is whole.
        axis: that the plan divides over; None: `tp`, or the only axis that divides no batch.

    Returns:
        The module.

    Raises:
        OptionError: a name that no module has, a style that does not fit a module, or no axis.
        ProgramError: a dimension that does not divide, or an unknown axis.
    """
    found: dict[nn.Module, list[tuple[str, Read]]] = {}
    if plan is not None:
        axis = _axis(mesh, axis)
        for name, layer, style in _planned(module, plan):
            found.setdefault(layer, []).append((name, read(style, layer, name)))
    # Nothing is changed before all of it was found to be possible.
    specs: dict[int, list[Any]] = {}
    for layer, reads in found.items():
        for name, one in reads:
            for key, at in one.parameters.items():
                parameter = layer.get_parameter(key)
                spec = _spec(parameter, at, axis)
                _check(parameter, mesh, spec, f"{name}.{key}".lstrip("."))
                specs[id(parameter)] = spec
    for parameter in module.parameters():
        if id(parameter) in specs or not _is_over(parameter, mesh):
            mark_sharding(parameter, mesh, specs.get(id(parameter), ()))
    _put_buffers(module, mesh)
    for layer, reads in found.items():
        for _, one in reads:
            assert axis is not None
            constrain_border(layer, one, mesh, axis)
    return module


@checked
def fully_shard(module: nn.Module, mesh: Mesh, *, axis: str | None = None) -> nn.Module:
    """Divide each parameter of a model over an axis as well, and with it what optimizers keep.

    A parameter is divided in its first dimension that the axis divides, one that is whole before
    one that is not; where no dimension does, it stays as it is. Buffers are whole.

    Args:
        module: on the host or on device `pjrt`, may be divided by `parallelize`; changed in place.
        mesh: the devices.
        axis: one that divides batches; None: `fsdp`, or `dp` where there is none.

    Returns:
        The module.

    Raises:
        OptionError: the mesh has no such axis.
        DataError: a parameter that is divided over another mesh.
    """
    sizes = mesh.grid.sizes
    chosen = axis or next((name for name in reversed(BATCH_AXES) if name in sizes), None)
    if chosen not in sizes:
        names = " or ".join(map(repr, BATCH_AXES if axis is None else (axis,)))
        raise OptionError(f"fully_shard: found {mesh}, expected one with an axis {names}")
    for parameter in module.parameters():
        mark_sharding(parameter, mesh, _divided_further(parameter, mesh, chosen))
    _put_buffers(module, mesh)
    return module


def _divided_further(parameter: torch.Tensor, mesh: Mesh, axis: str) -> list[list[str]]:
    held = sharding_of(parameter) if is_resident(parameter) else None
    spec: list[list[str]] = [[] for _ in range(parameter.dim())]
    if held is not None and held.mesh == mesh.grid:
        spec = [[item.name for item in axes] for axes in held.dimensions]
    if any(axis in names for names in spec):
        return spec
    sizes = mesh.grid.sizes
    for at in sorted(range(len(spec)), key=lambda at: (len(spec[at]), at)):
        parts = sizes[axis]
        for name in spec[at]:
            parts *= sizes[name]
        if parameter.shape[at] % parts == 0 and parameter.shape[at]:
            spec[at].append(axis)
            break
    return spec


def _axis(mesh: Mesh, axis: str | None) -> str:
    sizes = mesh.grid.sizes
    if axis is None:
        others = [name for name in sizes if name not in BATCH_AXES]
        axis = "tp" if "tp" in sizes else others[0] if len(others) == 1 else None
    if axis not in sizes:
        asked = "one to divide over" if axis is None else repr(axis)
        raise OptionError(f"parallelize: {mesh} has no axis {asked}; name it as axis=")
    return axis


def _planned(module: nn.Module, plan: Plan) -> Iterator[tuple[str, nn.Module, ParallelStyle]]:
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


def _spec(parameter: torch.Tensor, at: int | None, axis: str | None) -> list[Any]:
    return [axis if dim == at else None for dim in range(parameter.dim())]


def _check(parameter: torch.Tensor, mesh: Mesh, spec: Sequence[Any], name: str) -> None:
    try:
        Sharding.of(mesh.grid, spec, parameter.dim()).shard_shape(parameter.shape)
    except ProgramError as error:
        raise ProgramError(f"parameter {name!r}: {error}") from None


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
