"""The public functions: tracing a model without its weights, compiling it for devices elsewhere."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from pjrt_bridge import registry
from pjrt_bridge.errors import OptionError
from pjrt_bridge.registry import Budget, DeviceFigures
from pjrt_bridge.runtime import CompileOptions, Topology
from pjrt_bridge.stablehlo import Mesh
from pjrt_bridge.torch_interop import compat
from pjrt_bridge.torch_interop.exporting.capture import capture
from pjrt_bridge.torch_interop.exporting.training import capture_step
from pjrt_bridge.torch_interop.meshes.mesh import BATCH_AXES
from pjrt_bridge.torch_interop.planning.traced import TracedModel
from pjrt_bridge.torch_interop.planning.weightless import weightless
from pjrt_bridge.torch_interop.sharding.plans import (
    ParallelPlan,
    constrain_borders,
    parameter_axes,
    read_plan,
)
from pjrt_bridge.wrong_arguments import checked

Loss = Callable[[Any], torch.Tensor]


@checked
def trace(
    model: nn.Module,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    plan: ParallelPlan | None = None,
    axis: str = "tp",
    training: bool = False,
    loss: Loss | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    name: str | None = None,
) -> TracedModel:
    """A model as a graph that can be divided over any mesh; no weight is read or made.

    Args:
        model: its tensors may be on the device `meta`; it is not changed.
        args: example arguments, which may be on `meta` as well; shapes and types count.
        kwargs: example arguments by name.
        plan: see `pjrt_bridge.torch_interop.sharding.parallelize`.
        axis: that the plan divides over.
        training: trace loss and gradients.
        loss: see `pjrt_bridge.torch_interop.export`.
        optimizer: likewise; the graph is then a whole step.
        name: of the programs; by default that of the model's class.

    Raises:
        OptionError: options that contradict each other, a name in the plan that no module or
            parameter has, or a style or placement that does not fit it.
        NotExportable: a training step that cannot be traced.
        Exception: as torch.export raises it, for a model that it cannot trace.
    """
    if not training and (loss is not None or optimizer is not None):
        raise OptionError("planning: loss and optimizer belong to training=True")
    if axis in BATCH_AXES:
        raise OptionError(f"planning: the axis {axis!r} divides batches, expected another")
    copied = weightless(model, optimizer, tuple(args), dict(kwargs or {}))
    planned = read_plan(copied.model, plan)
    axes = {id(tensor): axes for _, tensor, axes in parameter_axes(planned, axis)}
    named = {
        key: axes[id(tensor)]
        for key, tensor in copied.model.named_parameters(remove_duplicate=False)
        if id(tensor) in axes
    }
    # Sizes come with a mesh; the names of axes alone say what is constrained.
    some = Mesh.of(dict.fromkeys((*BATCH_AXES, axis), 1))
    constrain_borders(planned, some, axis)
    called = type(model).__name__ if name is None else name
    positional = _positional(copied.model)
    with copied.tensors.everywhere():
        if not training:
            with torch.no_grad():
                program = compat.trace(copied.model, copied.args, copied.kwargs, None)
            return TracedModel(called, capture(program, positional), named)
        step = capture_step(
            copied.model, copied.args, copied.kwargs, positional, loss, copied.optimizer
        )
    trained: tuple[str, ...] = ()
    if optimizer is None:
        trained = tuple(
            source.name
            for source in step.sources
            if source.is_weight and source.value.requires_grad
        )
    return TracedModel(called, step, named, trained)


@checked
def compile_for(
    model: nn.Module | TracedModel,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    mesh: Mesh | Mapping[str, int],
    topology: str | Topology | None = None,
    plugin: str | None = None,
    only_estimate: bool = False,
    figures: DeviceFigures | None = None,
    options: CompileOptions | None = None,
    **traced: Any,
) -> Budget:
    """Compile a forward or training step over a mesh of devices that need not be there.

    Where the plugin has no compiler for the topology, the program is divided by Shardy's own passes
    and its cost estimated; the result says so.

    Args:
        model: a model, see `trace`; or what `trace` gave, for several meshes.
        args: see `trace`.
        kwargs: see `trace`.
        mesh: names and sizes of the axes; batches are divided over `dp` and `fsdp`, parameters over
            `fsdp` and as the plan says.
        topology: the devices, such as "v5e:4x4"; None: an estimate without any.
        plugin: whose topology it is; None: the one whose package knows the name.
        only_estimate: ask no compiler, which may take minutes.
        figures: what bounds programs on a device; None: what the topology's package knows.
        options: for compiling, of which the compiler flags count.
        **traced: further arguments of `trace`.

    Raises:
        OptionError: see `trace`; or a mesh of more devices than the topology has.
        ProgramError: a dimension of a parameter that does not divide.
        NotExportable: operators that do not lower.
        PluginNotFound: no package knows the topology, or its library is missing.
        PjrtError: what the plugin answered, but that the program does not fit, which is a result.
    """
    if isinstance(model, TracedModel):
        if args or kwargs or traced:
            raise OptionError("compile_for: the model is traced already, found arguments for that")
        found = model
    else:
        found = trace(model, args, kwargs, **traced)
    grid = mesh if isinstance(mesh, Mesh) else Mesh.of(mesh)
    return registry.budget(
        found.over(grid),
        topology,
        plugin=plugin,
        only_estimate=only_estimate,
        figures=figures,
        options=options,
    )


def _positional(model: nn.Module) -> list[str]:
    """The names of the parameters that arguments by position belong to."""
    found = inspect.signature(model.forward).parameters.values()
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [parameter.name for parameter in found if parameter.kind in kinds]
