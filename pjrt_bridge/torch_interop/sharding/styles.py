"""The parallel styles of `torch.distributed.tensor.parallel`, read as shardings and constraints.

A style is read, never applied: parameters get shardings, and inputs and outputs constraints, over
one axis of a mesh. All values have their whole shape, so how a style assumes that inputs come
(`input_layouts`) and whether they are local (`use_local_output`) say nothing here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn
from torch.distributed.tensor import Placement, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    PrepareModuleInputOutput,
    PrepareModuleOutput,
    RowwiseParallel,
    SequenceParallel,
)

from pjrt_bridge.errors import OptionError
from pjrt_bridge.stablehlo.sharding import mesh as grids
from pjrt_bridge.torch_interop import compat
from pjrt_bridge.torch_interop.meshes.constraint import OPEN, shard_constraint
from pjrt_bridge.torch_interop.meshes.mesh import Mesh

OptionalPlacement = Placement | None
"""Of a value along the axis; None says nothing."""


@dataclass(frozen=True)
class StyleEffect:
    """What a plan asks of a module: how its parameters and values are divided over the axis.

    Attributes:
        parameters: by name the dimension that the axis divides; None: none.
        specs: by names of parameters the axes that divide each dimension, whatever the axis is.
        inputs: of the arguments by position.
        named: of the arguments by name.
        outputs: of the results; of a tensor alone one.
    """

    parameters: Mapping[str, int | None] = field(default_factory=dict)
    specs: Mapping[str, Sequence[Sequence[str]]] = field(default_factory=dict)
    inputs: Sequence[OptionalPlacement] = ()
    named: Mapping[str, OptionalPlacement] = field(default_factory=dict)
    outputs: Sequence[OptionalPlacement] = ()


def effect_of(style: ParallelStyle, module: nn.Module, name: str) -> StyleEffect:
    """What a style asks of a module.

    Args:
        style: of torch.
        module: that it is for.
        name: of the module in a plan.

    Raises:
        OptionError: a style of another class, one that cannot divide such a module, or a placement
            that is neither `Shard` nor `Replicate`.
    """
    for kind, reader in _READERS.items():
        if isinstance(style, kind):
            found = reader(style, module, name)
            for layout in (*found.inputs, *found.named.values(), *found.outputs):
                if layout is not None and not isinstance(layout, (Shard, Replicate)):
                    raise OptionError(
                        f"plan: {style} for {name!r}: found the placement {layout}, expected Shard "
                        "or Replicate"
                    )
            return found
    names = ", ".join(kind.__name__ for kind in _READERS)
    raise OptionError(f"plan: found {style!r} for {name!r}, expected one of {names}")


def _dimensions(
    style: ParallelStyle, module: nn.Module, name: str, *, linear: int, embedding: int
) -> dict[str, int | None]:
    """The dimension of each parameter of a layer that an axis divides."""
    if isinstance(module, nn.Embedding):
        return {"weight": embedding}
    if not isinstance(module, nn.Linear):
        raise OptionError(
            f"plan: {type(style).__name__} for {name!r}: found a module {type(module).__name__}, "
            "expected nn.Linear or nn.Embedding; name the parameters of other modules in the plan, "
            "with Shard(dimension)"
        )
    found: dict[str, int | None] = {"weight": linear}
    if module.bias is not None:
        # The sum over the axis comes before the bias where columns are divided.
        found["bias"] = 0 if linear == 0 else None
    return found


def _columns(style: ColwiseParallel, module: nn.Module, name: str) -> StyleEffect:
    parameters = _dimensions(style, module, name, linear=0, embedding=1)
    return StyleEffect(parameters, inputs=style.desired_input_layouts, outputs=style.output_layouts)


def _rows(style: RowwiseParallel, module: nn.Module, name: str) -> StyleEffect:
    parameters = _dimensions(style, module, name, linear=1, embedding=0)
    inputs = (Replicate() if isinstance(module, nn.Embedding) else Shard(-1),)
    return StyleEffect(parameters, inputs=inputs, outputs=style.output_layouts)


def _sequence(style: SequenceParallel, module: nn.Module, name: str) -> StyleEffect:
    parameters = {key: None for key, _ in module.named_parameters()}
    sequence = style.sequence_sharding
    return StyleEffect(parameters, inputs=sequence, outputs=sequence)


def _input(style: PrepareModuleInput, module: nn.Module, name: str) -> StyleEffect:
    return StyleEffect(
        inputs=style.desired_input_layouts or (), named=style.desired_input_kwarg_layouts or {}
    )


def _output(style: PrepareModuleOutput, module: nn.Module, name: str) -> StyleEffect:
    return StyleEffect(outputs=style.desired_output_layouts)


def _input_output(style: PrepareModuleInputOutput, module: nn.Module, name: str) -> StyleEffect:
    taken = _input(style.prepare_module_input, module, name)
    given = _output(style.prepare_module_output, module, name)
    return StyleEffect(inputs=taken.inputs, named=taken.named, outputs=given.outputs)


_READERS: dict[type[ParallelStyle], Callable[[Any, nn.Module, str], StyleEffect]] = {
    ColwiseParallel: _columns,
    RowwiseParallel: _rows,
    SequenceParallel: _sequence,
    PrepareModuleInput: _input,
    PrepareModuleOutput: _output,
    PrepareModuleInputOutput: _input_output,
}


def constrain_border(
    module: nn.Module, effect: StyleEffect, mesh: Mesh | grids.Mesh, axis: str
) -> None:
    """Have a module constrain its inputs and outputs, in each call."""
    inputs = tuple(map(_divided, effect.inputs))
    named = {name: _divided(layout) for name, layout in effect.named.items()}
    outputs = tuple(map(_divided, effect.outputs))

    def take(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        taken = (
            *(_constrained(x, mesh, axis, at) for x, at in zip(args, inputs, strict=False)),
            *args[len(inputs) :],
        )
        return taken, {
            name: _constrained(x, mesh, axis, named.get(name)) for name, x in kwargs.items()
        }

    def give(_: nn.Module, args: Any, result: Any) -> Any:
        if isinstance(result, (tuple, list)):
            given = [
                _constrained(x, mesh, axis, at) for x, at in zip(result, outputs, strict=False)
            ]
            return type(result)([*given, *result[len(outputs) :]])
        return _constrained(result, mesh, axis, outputs[0])

    grid = mesh if isinstance(mesh, grids.Mesh) else mesh.grid
    if inputs or named:
        module.register_forward_pre_hook(take, with_kwargs=True)
        _meshes[take] = grid
    if outputs:
        module.register_forward_hook(give)
        _meshes[give] = grid


def free_borders(module: nn.Module, mesh: grids.Mesh) -> None:
    """Remove what `constrain_border` gave a module, and those in it, for other meshes."""
    for layer in module.modules():
        compat.remove_forward_hooks(layer, lambda hook: _meshes.get(hook, mesh) != mesh)


_meshes: WeakKeyDictionary[Callable[..., Any], grids.Mesh] = WeakKeyDictionary()
"""The mesh of each hook; copies of a module have the same hooks."""

_WHOLE = "whole"


def _divided(layout: OptionalPlacement) -> int | str | None:
    """The dimension that a layout divides, or that it divides none; None where it says nothing."""
    return None if layout is None else layout.dim if isinstance(layout, Shard) else _WHOLE


def _constrained(value: Any, mesh: Mesh | grids.Mesh, axis: str, at: int | str | None) -> Any:
    if at is None or not isinstance(value, torch.Tensor):
        return value
    spec: list[Any] = [OPEN] * value.dim()
    if isinstance(at, str):
        return shard_constraint(value, mesh, spec, replicated=(axis,))
    spec[at] = (axis, OPEN)
    return shard_constraint(value, mesh, spec)
