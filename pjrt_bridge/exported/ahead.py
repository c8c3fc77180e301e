"""Programs of an exported model that were compiled ahead of time, beside their StableHLO.

A `CompiledProgram` is loaded by the plugin that compiled it. For another one it can be compiled
again: its StableHLO is still there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from pjrt_bridge.errors import ProgramError
from pjrt_bridge.exported.parts import SplitProgram
from pjrt_bridge.exported.specialization import Specialization
from pjrt_bridge.runtime import Compiled, CompileOptions, PluginCore
from pjrt_bridge.runtime.compile.serialized import unpack
from pjrt_bridge.stablehlo.program.program import Program
from pjrt_bridge.stablehlo.program.saved import SavedProgram
from pjrt_bridge.stablehlo.types import Signature


class ProgramCompiler(Protocol):
    """A compiler of programs: a Client for its own devices, a Topology for others.

    Attributes:
        plugin: of the compiler.
    """

    @property
    def plugin(self) -> PluginCore: ...  # noqa: D102

    def compile(self, program: Program, *, options: CompileOptions | None = None) -> Compiled:
        """See `Client.compile`."""


class CompiledProgram(SavedProgram):
    """A program, and what a compiler made of it.

    Args:
        artifact: a portable artifact.
        name: symbol name of the module.
        signature: of its `main`.
        executable: what `Compiled.serialize` gave for it.

    Attributes:
        made_for: the topology that it was compiled for, or the platform with its version.

    Raises:
        ProgramError: no portable artifact; no serialized executable, a damaged one, or one of a
            program with another signature.
    """

    def __init__(self, artifact: bytes, name: str, signature: Signature, executable: bytes) -> None:
        super().__init__(artifact, name, signature)
        header, _ = unpack(executable)
        found = Signature.from_json(header.signature)
        if found != signature:
            raise ProgramError(
                f"the serialized executable is of a program {header.name!r} with another "
                f"signature: found {_types(found)}, needed {_types(signature)}"
            )
        self.executable = executable
        self.made_for = header.topology or header.platform


def compile_ahead(
    one: Specialization, compile: Callable[[Program], Compiled], target: str | None
) -> Specialization:
    """A model's program with the programs for the device compiled; what the host runs stays.

    Args:
        one: whole or in parts.
        compile: called for each program of `Specialization.device_programs`, in that order.
        target: StableHLO version that the artifacts are written for; None: the newest.

    Raises:
        ProgramError: the target cannot express a program.
        PjrtError: the plugin cannot compile or serialize one.
    """

    def compiled(program: Program) -> CompiledProgram:
        executable = compile(program).serialize()
        artifact = program.portable_artifact(target)
        return CompiledProgram(artifact, program.name, program.signature, executable)

    if not isinstance(one.program, SplitProgram):
        return replace(one, program=compiled(one.program))
    parts = tuple(
        replace(part, runs=compiled(part.runs)) if isinstance(part.runs, Program) else part
        for part in one.program.parts
    )
    return replace(one, program=replace(one.program, parts=parts))


def _types(signature: Signature) -> str:
    takes = ", ".join(str(parameter.type) for parameter in signature.parameters)
    gives = ", ".join(str(result.type) for result in signature.results)
    return f"({takes}) -> ({gives})"
