"""The public function `export`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import torch
from torch import nn
from torch.export import ExportedProgram

from pjrt_bridge import dtypes, registry
from pjrt_bridge.errors import (
    NotExportable,
    OptionError,
    PluginIncompatible,
    PluginLoadError,
    PluginNotFound,
)
from pjrt_bridge.exported import ExportedModel, Interface, Weight
from pjrt_bridge.runtime import Client
from pjrt_bridge.stablehlo import bindings
from pjrt_bridge.stablehlo.composites import SINCE
from pjrt_bridge.torch_interop import compat
from pjrt_bridge.torch_interop.exporting import torch_xla
from pjrt_bridge.torch_interop.exporting.capture import CapturedGraph, capture
from pjrt_bridge.torch_interop.exporting.lowering import (
    KeptComposites,
    lift_random_keys,
    lower,
)
from pjrt_bridge.torch_interop.exporting.operator_composites import with_marks
from pjrt_bridge.torch_interop.exporting.symbols import Symbols
from pjrt_bridge.torch_interop.exporting.training import capture_step
from pjrt_bridge.torch_interop.tensors import array_over
from pjrt_bridge.wrong_arguments import checked

Loss = Callable[[Any], torch.Tensor]


@checked
def export(
    model: nn.Module | ExportedProgram,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    dynamic_shapes: Any = None,
    sizes: Sequence[Mapping[str, int]] | None = None,
    training: bool = False,
    loss: Loss | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    split: bool = False,
    target: str | Client | None = None,
    name: str | None = None,
    exporter: Literal["pjrt", "torch_xla"] = "pjrt",
    platform: str | None = None,
    composites: Literal["inline", "keep"] = "inline",
) -> ExportedModel:
    """A PyTorch model as StableHLO programs, with its weights and the way it is called.

    The model is traced by `torch.export`, in the mode (training or evaluation) that it is in; the
    model itself is not changed. The weights share the model's memory until they are saved.

    Args:
        model: a module, or what `torch.export.export` made of one.
        args: example arguments; not needed for an ExportedProgram, unless it is for training.
        kwargs: example arguments by name.
        dynamic_shapes: as `torch.export.export` takes it. Programs have fixed sizes: one is made
            for each of `sizes`.
        sizes: values of the symbolic sizes, by the names of their `Dim`, or as `ARGUMENT.DIMENSION`
            (`"x.0"`) where they have none; needed where there are any. An ExportedProgram knows no
            names any more.
        training: export loss and gradients instead of the results: `{"loss", "outputs",
            "gradients"}`, the gradients by the names of the parameters.
        loss: for `training`, gives the loss of what the model gives; by default the model gives it,
            as its result, the result's entry `"loss"`, or the first of several.
        optimizer: for `training`, over parameters of the model. The program is then a whole step:
            it gives `{"loss", "outputs"}`, and new values to parameters and the optimizer's state.
        split: where operators do not lower, make a program in parts: several for the device, and
            between them what PyTorch runs on the host, which then needs PyTorch. By default such a
            model is refused.
        target: StableHLO version that the artifacts are for, such as `"1.8.0"`; of a client, its
            plugin's; by default the one that plugins of the last four weeks and the default plugin
            read.
        name: of the model; by default that of its class.
        exporter: `"torch_xla"`: PyTorch/XLA's own export lowers the model, where that is installed.
        platform: that the model is for alone, such as `"tpu"` or `"cuda"`: functions of JAX are
            written as JAX writes them for it, with kernels of Pallas as custom calls. By default
            any plugin takes the model.
        composites: `"keep"`: operators that compilers may know (`operator_composites.KEPT`), and
            functions that are marked with `torch_interop.composite`, stay one operation each, with
            the operations that it is made of as its decomposition; `"inline"`: these alone.

    Raises:
        NotExportable: operators that do not lower (all of them, with their source lines) or that
            have results of sizes that depend on data, arguments that no program can have, or a part
            on the host that cannot be saved.
        OptionError: options that contradict each other, sizes that the model does not have, or none
            for a model with dynamic dimensions; the text names these.
        ProgramError: a target version that there is none of.
        Exception: as torch.export raises it, for a model that it cannot trace.
    """
    if not isinstance(model, (nn.Module, ExportedProgram)):
        raise OptionError(
            f"export: found a {type(model).__name__}, expected a module or an ExportedProgram"
        )
    if exporter not in ("pjrt", "torch_xla"):
        raise OptionError(f"exporter: found {exporter!r}, expected 'pjrt' or 'torch_xla'")
    if composites not in ("inline", "keep"):
        raise OptionError(f"composites: found {composites!r}, expected 'inline' or 'keep'")
    if not training and (loss is not None or optimizer is not None):
        raise OptionError("export: loss and optimizer belong to training=True")
    if training and (dynamic_shapes is not None or sizes is not None):
        raise OptionError("export: a training step has the sizes of its example; export one each")
    if isinstance(model, ExportedProgram) and dynamic_shapes is not None:
        raise OptionError("export: the ExportedProgram has its dynamic shapes already")
    version = _version(target)
    kept = KeptComposites() if composites == "keep" else None
    if kept is not None:
        _check_composites(version, split)
    called = name or _name(model)
    if exporter == "torch_xla":
        if training or split or kwargs or kept or dynamic_shapes is not None or sizes is not None:
            raise OptionError(
                "exporter 'torch_xla': it takes arguments by position of fixed sizes, and makes no "
                "training steps, no parts and no composites"
            )
        program = _exported(model, tuple(args), {}, None)
        if program.range_constraints:
            raise OptionError(
                "exporter 'torch_xla': found an ExportedProgram with dynamic dimensions, expected "
                "one of fixed sizes"
            )
        return torch_xla.export(program, _positional(model), name=called, target=version)
    symbols = Symbols()
    if training:
        captured = capture_step(
            _module(model),
            tuple(args),
            dict(kwargs or {}),
            _positional(model),
            loss,
            optimizer,
            marked=kept is not None,
        )
    else:
        program = _exported(model, tuple(args), dict(kwargs or {}), dynamic_shapes)
        names = _positional(model)
        captured = capture(program if kept is None else with_marks(program), names)
        symbols = Symbols.of(program, captured, names, dynamic_shapes)
    module, keys = lift_random_keys(captured.module, kept)
    lowered = [
        lower(
            captured,
            symbols.specialized(module, captured, chosen, keys),
            keys,
            name=called if not chosen else "_".join([called, *map(str, chosen.values())]),
            sizes=chosen,
            split=split,
            platform=platform,
            kernels=kept,
        )
        for chosen in symbols.choices(sizes)
    ]
    weights, tensors = _weights(captured)
    for one in lowered:
        for held, array in one.held.items():
            weights[held] = Weight("constant", dtypes.from_numpy(array.dtype), array.shape, held)
            tensors[held] = array
    used = {
        slot.of for one in lowered for slot in one.specialization.slots if slot.kind == "weight"
    }
    weights = {key: weight for key, weight in weights.items() if key in used}
    stored = {weight.tensor for weight in weights.values()}
    return ExportedModel(
        name=called,
        interface=Interface(
            captured.arguments, tuple(captured.leaves(symbols.shapes)), captured.outputs
        ),
        weights=weights,
        tensors={key: array for key, array in tensors.items() if key in stored},
        specializations=tuple(one.specialization for one in lowered),
        exporter=f"torch {torch.__version__}",
        symbols=symbols.limits,
        target=version,
    )


def _check_composites(version: str, split: bool) -> None:
    if split:
        raise OptionError(
            "export: composites='keep' and split=True exclude each other: what PyTorch runs is no "
            "composite"
        )
    if bindings.parse_version(version) < bindings.parse_version(SINCE):
        raise OptionError(
            f"composites='keep': found StableHLO {version} as target, expected {SINCE} or newer, "
            "which has composites"
        )


def _exported(
    model: nn.Module | ExportedProgram,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    dynamic_shapes: Any,
) -> ExportedProgram:
    if isinstance(model, ExportedProgram):
        return model
    try:
        with torch.no_grad():
            return compat.trace(model, args, kwargs, dynamic_shapes)
    except compat.DATA_DEPENDENT as error:
        raise NotExportable(
            f"{type(model).__name__}: torch.export traces no operator whose result has a size that "
            f"depends on data: {error}; torch.compile runs the model, with that part in PyTorch"
        ) from error


def _module(model: nn.Module | ExportedProgram) -> nn.Module:
    return model.module() if isinstance(model, ExportedProgram) else model


def _name(model: nn.Module | ExportedProgram) -> str:
    return "exported" if isinstance(model, ExportedProgram) else type(model).__name__


def _positional(model: nn.Module | ExportedProgram) -> list[str]:
    """The names of the parameters that arguments by position belong to."""
    if isinstance(model, ExportedProgram):
        signature = model.module_call_graph[0].signature
        return list(getattr(signature, "forward_arg_names", None) or ())
    found = inspect.signature(model.forward).parameters.values()
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [parameter.name for parameter in found if parameter.kind in kinds]


def _version(target: str | Client | None) -> str:
    """The StableHLO version to write; by default one that the default plugin reads, too."""
    if isinstance(target, str):
        bindings.check_version(target)
        return target
    if isinstance(target, Client):
        newest, plugin = bindings.current_version(), target.plugin
    else:
        newest = bindings.compatibility_versions()[-1]
        try:
            plugin = registry.load()
        except (PluginNotFound, PluginLoadError, PluginIncompatible):
            return newest
    theirs = plugin.stablehlo_version or bindings.minimum_version()
    return min(theirs, newest, key=bindings.parse_version)


def _weights(captured: CapturedGraph) -> tuple[dict[str, Weight], dict[str, Any]]:
    """The weights; those that are one tensor in the model are one in the file."""
    weights: dict[str, Weight] = {}
    tensors: dict[str, Any] = {}
    owners: dict[Any, str] = {}
    for source in captured.sources:
        if not source.is_weight:
            continue
        value = source.value
        if not isinstance(value, torch.Tensor) or isinstance(value, compat.FakeTensor):
            raise NotExportable(
                f"weight {source.name!r}: found a {type(value).__name__}, expected a tensor"
            )
        if value.layout is not torch.strided or value.device.type != "cpu":
            raise NotExportable(
                f"weight {source.name!r}: found a tensor of layout {value.layout} on "
                f"{value.device}, expected a strided one on the cpu"
            )
        place = (value.data_ptr(), tuple(value.shape), value.stride(), value.dtype)
        owner = owners.setdefault(place, source.name) if value.numel() else source.name
        if owner == source.name:
            tensors[owner] = array_over(value)
        dtype = dtypes.from_torch(value.dtype)
        weights[source.name] = Weight(source.kind, dtype, tuple(value.shape), owner)  # type: ignore[arg-type]
    return weights, tensors
