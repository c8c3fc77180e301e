"""Shardings of a whole program: what is known is annotated, Shardy's propagation finds the rest.

A partitioner is free in what was not said: it gave parameters without a sharding the shards that
their readers wanted, and tells nobody. So every parameter and result gets a closed sharding before
a plugin sees the program, and callers know what to pass and what they will get.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pjrt_bridge.errors import ProgramError
from pjrt_bridge.stablehlo import bindings, composites, modules
from pjrt_bridge.stablehlo.partitioning.unmerged import unmerge
from pjrt_bridge.stablehlo.program.program import Program
from pjrt_bridge.stablehlo.sharding.mesh import SYMBOL, Mesh, axes_in
from pjrt_bridge.stablehlo.sharding.sharding import Sharding, axes_of, is_open, symbol_in
from pjrt_bridge.wrong_arguments import checked

_KEY = "sdy.sharding"
_PROPAGATION = "sdy-propagation-pipeline"
_SIDES = (("parameter", "arg_attrs"), ("result", "res_attrs"))


@dataclass(frozen=True)
class ShardedProgram:
    """A program whose parameters and results all have a closed sharding.

    Attributes:
        program: the annotated program.
        mesh: its devices.
        parameters: the sharding of each parameter.
        results: the sharding of each result.
    """

    program: Program
    mesh: Mesh
    parameters: tuple[Sharding, ...]
    results: tuple[Sharding, ...]

    @property
    def idle_axes(self) -> tuple[str, ...]:
        """Axes that divide nothing: the devices along them do the same work."""
        module = bindings.parse(self.program.bytecode(), f"program {self.program.name!r}")
        stated = {str(one) for one in _constraints(module)}
        stated.update(one.text() for one in (*self.parameters, *self.results))
        named = {name for text in stated for name in axes_of(text)}
        return tuple(name for name, size in self.mesh.axes if size > 1 and name not in named)


@checked
def shard(
    program: Program,
    mesh: Mesh,
    parameters: Sequence[Sharding | None],
    results: Sequence[Sharding | None],
) -> ShardedProgram:
    """Divide a program over a mesh.

    Args:
        program: one without a mesh, or with constraints over this one (`Builder.constrain`).
        mesh: the devices.
        parameters: the sharding of each parameter; None leaves it to propagation.
        results: likewise; one that takes the memory of a parameter lies as this does.

    Raises:
        ProgramError: a sharding over another mesh or for another rank, a dimension that does not
            divide, another number of shardings than of values, or another mesh in the program.
    """
    results = _written_in_place(program, parameters, results)
    module = bindings.parse(program.bytecode(), f"program {program.name!r}")
    unmerge(module)
    modules.declare_mesh(module, SYMBOL, mesh.text)
    main = modules.find_main(module)
    for (what, name), values, shardings in zip(
        _SIDES, modules.function_values(main), (parameters, results), strict=True
    ):
        if len(shardings) != len(values):
            raise ProgramError(
                f"program {program.name!r}: found shardings for {len(shardings)} {what}s, it has "
                f"{len(values)}"
            )
        known = {at: one for at, one in enumerate(shardings) if one is not None}
        for at, one in known.items():
            if one.mesh != mesh:
                raise ProgramError(
                    f"program {program.name!r}: {what} {at}: found a sharding over {one.mesh}, "
                    f"expected {mesh}"
                )
            _check(program.name, what, at, one, values[at])
        if known:
            texts = {at: one.text() for at, one in known.items()}
            modules.attach(main, name, _KEY, texts, parsed=True)
    found = _close(module, program)
    return ShardedProgram(Program.from_module(module), mesh, *found)


def closed(program: Program) -> Program:
    """A program of another maker that is divided by Shardy, with nothing left open.

    Raises:
        ProgramError: a parameter or result of which a dimension does not divide into equal parts.
    """
    module = bindings.parse(program.bytecode(), f"program {program.name!r}")
    if not modules.meshes(module):
        return program
    _close(module, program)
    return Program.from_module(module)


def _constraints(module: Any) -> Iterator[Any]:
    """The shardings that constraints within a module state."""
    for operation in modules.operations(module):
        if operation.name == "sdy.sharding_constraint":
            yield operation.attributes["sharding"]


def _close(module: Any, program: Program) -> tuple[tuple[Sharding, ...], tuple[Sharding, ...]]:
    """Annotate what has no closed sharding, in place; the shardings of parameters and results."""
    # Shardy knows functions and their calls.
    composites.inline(module)
    name = program.name
    donors = {
        parameter.alias: at
        for at, parameter in enumerate(program.signature.parameters)
        if parameter.alias is not None
    }
    meshes = {symbol: Mesh.of(axes_in(text)) for symbol, text in modules.meshes(module).items()}
    main = modules.find_main(module)
    stated = [_texts(values) for values in modules.function_values(main)]
    found = stated
    if any(text is None or is_open(text) for texts in stated for text in texts):
        trial = bindings.parse(bindings.write_bytecode(module), f"program {name!r}")
        bindings.run_passes(trial, _PROPAGATION)
        found = [_texts(values) for values in modules.function_values(modules.find_main(trial))]
    sides: list[tuple[Sharding, ...]] = []
    for (what, key), said, texts, values in zip(
        _SIDES, stated, found, modules.function_values(main), strict=True
    ):
        shardings, changed = [], {}
        for at, (before, text, (kind, _)) in enumerate(zip(said, texts, values, strict=True)):
            shape = tuple(kind.shape)
            # Propagation drops from stated ones what does not divide.
            is_stated = before is not None and not is_open(before)
            if not (is_stated or sides):
                # What nothing reads follows from nothing but what takes its memory.
                text = _of_result(program, at, stated[1], found[1]) or text
            text = before if is_stated else text
            if text is None:
                symbol, mesh = next(iter(meshes.items()))
                one = Sharding.replicated(mesh, len(shape))
            else:
                symbol = symbol_in(text)
                one = Sharding.parse(text, meshes)
            if not is_stated:
                # A result that takes the memory of a parameter lies as it does.
                donor = donors.get(at) if sides else None
                one = one.as_far_as_it_divides(shape) if donor is None else sides[0][donor]
                changed[at] = one.text(symbol)
            _check(name, what, at, one, values[at])
            shardings.append(one)
        if changed:
            modules.attach(main, key, _KEY, changed, parsed=True)
        sides.append(tuple(shardings))
    return sides[0], sides[1]


def _of_result(
    program: Program,
    parameter: int,
    stated: Sequence[str | None],
    found: Sequence[str | None],
) -> str | None:
    """How the result is divided that takes a parameter's memory; None where that is not known."""
    alias = program.signature.parameters[parameter].alias
    return None if alias is None else stated[alias] or found[alias]


def _check(name: str, what: str, at: int, sharding: Sharding, value: tuple[Any, Any]) -> None:
    """Check that a parameter or result divides into equal parts."""
    try:
        sharding.shard_shape(tuple(value[0].shape))
    except ProgramError as error:
        raise ProgramError(f"program {name!r}: {what} {at}: {error}") from None


def _texts(values: modules.Described) -> list[str | None]:
    return [attributes.get(_KEY) for _, attributes in values]


def _written_in_place(
    program: Program, parameters: Sequence[Sharding | None], results: Sequence[Sharding | None]
) -> Sequence[Sharding | None]:
    """The shardings of results, where one that takes a parameter's memory lies as this does.

    Raises:
        ProgramError: another sharding is asked for.
    """
    found = list(results)
    for index, (parameter, sharding) in enumerate(
        zip(program.signature.parameters, parameters, strict=False)
    ):
        if parameter.alias is None or parameter.alias >= len(found):
            continue
        if found[parameter.alias] not in (None, sharding):
            raise ProgramError(
                f"program {program.name!r}: result {parameter.alias} takes the memory of parameter "
                f"{index}: found the shardings {found[parameter.alias]} and {sharding}, expected "
                "the same one"
            )
        found[parameter.alias] = sharding
    return found
