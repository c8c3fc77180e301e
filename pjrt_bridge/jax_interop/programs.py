"""Functions of JAX as exported models: what `jax.export` wrote, and what `jax.jit` lowered.

Donation and layouts are those of the program. A function with symbolic sizes becomes one program
for each choice of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from pjrt_bridge.errors import OptionError, ProgramError
from pjrt_bridge.exported import (
    Argument,
    ExportedModel,
    Interface,
    Slot,
    Specialization,
    TensorLeaf,
    Tree,
    Weight,
)
from pjrt_bridge.jax_interop import artifact, compat, symbols
from pjrt_bridge.jax_interop.artifact import Exported
from pjrt_bridge.jax_interop.lapack import without_lapack
from pjrt_bridge.stablehlo.program.program import Program
from pjrt_bridge.stablehlo.program.refining import refine


def from_exported(
    exported: object,
    *,
    platform: str | None = None,
    sizes: Mapping[str, int] | Sequence[Mapping[str, int]] = (),
) -> ExportedModel:
    """The model that a function exported by `jax.export` is.

    Arguments are called `arg0`, `arg1`, ... by position, as the artifact has no names for them;
    those by keyword have theirs.

    Args:
        exported: the bytes that `jax.export.Exported.serialize` gave, which need no JAX, or the
            object itself.
        platform: of those that the function was exported for, in JAX's words (`"cpu"`, `"cuda"`,
            `"tpu"`); needed where there are several.
        sizes: of the symbolic sizes, by name; several choices make several programs.

    Raises:
        ProgramError: no such artifact, one that is for several devices or needs JAX at run time,
            or sizes that its own assertions refuse.
        OptionError: a platform that it was not exported for, a size that is missing, unknown or no
            number.
    """
    if isinstance(exported, (bytes, bytearray, memoryview)):
        found, exporter = artifact.read(bytes(exported)), "jax.export"
    else:
        found, exporter = compat.exported(exported), compat.name_and_version()
    where = f"function {found.name!r} of jax.export"
    _check_devices(where, found.devices)
    constants = _platform_index(where, found.platforms, platform)
    choices = list(sizes) if not isinstance(sizes, Mapping) else [sizes] if sizes else []
    names = sorted({name for aval in found.avals for name in symbols.names(aval.shape)})
    if names and not choices:
        raise OptionError(
            f"{where}: sizes: found none, expected numbers for {', '.join(names)}, such as "
            f"{dict.fromkeys(names, 2)}"
        )
    program = Program.from_portable_artifact(found.module)
    specializations = tuple(
        _specialize(where, found, program, constants, names, chosen) for chosen in choices or [{}]
    )
    return _model(found, specializations, exporter, symbolic=names)


def from_lowered(lowered: object) -> ExportedModel:
    """The model that `jax.jit(f).lower(...)` is; arrays that `f` closes over become weights.

    The program is the one for the platform that it was lowered for.

    Raises:
        ProgramError: no lowered function, or one that is for several devices or calls functions of
            this process.
        RegistrationError: JAX is missing or of an unknown kind.
    """
    found = compat.lowered(lowered)
    where = f"lowered function {found.function.name!r}"
    _check_devices(where, found.function.devices)
    constants = {f"constant_{index}": array for index, array in enumerate(found.constants)}
    program = without_lapack(found.program, where)
    declared = program.signature
    model = _model(
        found.function,
        (_specialization(found.function, program, {}, tuple(constants)),),
        compat.name_and_version(),
        symbolic=(),
    )
    weights = {
        name: Weight("constant", parameter.type.dtype, parameter.type.shape, name)
        for name, parameter in zip(constants, declared.parameters, strict=False)
    }
    return replace(model, weights=weights, tensors=constants)


def _check_devices(where: str, devices: int) -> None:
    if devices != 1:
        raise ProgramError(
            f"{where}: it is for {devices} devices; its StableHLO runs with Client.compile and "
            "Executable.execute_sharded"
        )


def _platform_index(where: str, known: Sequence[str], platform: str | None) -> dict[int, int]:
    """The constant that leads the parameters where a module is for several platforms."""
    if platform is None and len(known) == 1:
        return {}
    if platform not in known:
        raise OptionError(
            f"{where}: platform: found {platform!r}, expected one of {', '.join(known)}"
        )
    return {0: known.index(platform)} if len(known) > 1 else {}


def _specialize(
    where: str,
    found: Exported,
    program: Program,
    constants: Mapping[int, int],
    names: Sequence[str],
    sizes: Mapping[str, int],
) -> Specialization:
    if set(sizes) != set(names):
        raise OptionError(
            f"{where}: sizes: found {dict(sizes)}, expected numbers for "
            f"{', '.join(names) or 'none'}"
        )
    if names or constants:
        shapes = [symbols.shape(found.avals[index].shape, sizes) for index in found.kept]
        program = refine(program, shapes, constants)
    program = without_lapack(program, where)
    return _specialization(found, program, sizes, ())


def _specialization(
    found: Exported, program: Program, sizes: Mapping[str, int], constants: Sequence[str]
) -> Specialization:
    declared = program.signature
    parameters = (
        *(Slot("weight", name) for name in constants),
        *(Slot("input", index) for index in found.kept),
    )
    counts = (len(declared.parameters), len(declared.results))
    expected = (len(parameters), len(found.outputs.leaves))
    if counts != expected:
        raise ProgramError(
            f"function {found.name!r}: its module has {counts[0]} parameters and {counts[1]} "
            f"results, expected {expected[0]} and {expected[1]}"
        )
    results = range(len(declared.results))
    return Specialization(
        program,
        parameters,
        tuple(None for _ in results),
        tuple(Slot("result", index) for index in results),
        dict(sizes),
    )


def _model(
    found: Exported,
    specializations: tuple[Specialization, ...],
    exporter: str,
    *,
    symbolic: Sequence[str],
) -> ExportedModel:
    arguments = _arguments(found)
    leaves: dict[int, str] = {}
    for argument in arguments:
        leaves |= argument.tree.paths(argument.name)
    return ExportedModel(
        name=found.name,
        interface=Interface(
            arguments,
            tuple(
                TensorLeaf(leaves[index], aval.dtype, symbols.dimensions(aval.shape))
                for index, aval in enumerate(found.avals)
            ),
            found.outputs,
        ),
        weights={},
        tensors={},
        specializations=specializations,
        exporter=exporter,
        # JAX's sizes are at least 1.
        symbols=dict.fromkeys(symbolic, (1, None)),
    )


def _arguments(found: Exported) -> tuple[Argument, ...]:
    """Positional and keyword arguments of a tree of both."""
    match found.inputs:
        case Tree(kind="tuple", items=(Tree(kind="tuple") as args, Tree(kind="dict") as kwargs)):
            positional = (Argument(f"arg{at}", tree) for at, tree in enumerate(args.items))
            named = (Argument(k, tree) for k, tree in zip(kwargs.keys, kwargs.items, strict=True))
            return (*positional, *named)
    raise ProgramError(
        f"function {found.name!r}: its arguments are no pair of a tuple and a dict of keywords"
    )
