"""Programs of an exported model on a client: whole, or part after part."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Protocol

from pjrt_bridge.errors import OptionError, ProgramError, SavedModelError
from pjrt_bridge.exported.ahead import CompiledProgram
from pjrt_bridge.exported.parts import HostPart, SplitProgram
from pjrt_bridge.mixed.execution import CallRecord, Runner
from pjrt_bridge.mixed.graph import Graph, Node
from pjrt_bridge.mixed.partition import Segment
from pjrt_bridge.mixed.program import MixedProgram
from pjrt_bridge.mixed.renewal import compile_for
from pjrt_bridge.runtime import Buffer, Client, CompileOptions, Executable, PluginCore
from pjrt_bridge.stablehlo.bindings import parse_version
from pjrt_bridge.stablehlo.program.program import Program
from pjrt_bridge.stablehlo.program.saved import SavedProgram


class RunnableProgram(Protocol):
    """A program that is compiled."""

    def run(self, arguments: Sequence[Buffer], consumed: Sequence[int]) -> Sequence[Any]:
        """The results: buffers, or numbers.

        Args:
            arguments: for each parameter.
            consumed: indices of arguments that nobody needs after the call.
        """

    def run_directly(self, arguments: Sequence[Any]) -> Sequence[Buffer] | None:
        """The results for buffers and NumPy arrays; see `Executable.call_directly`."""

    def close(self) -> None:
        """Unload it."""


def compiled(
    program: Program | SplitProgram, client: Client, options: CompileOptions | None
) -> RunnableProgram:
    """A program as a client runs it.

    Raises:
        PjrtError: the plugin could not compile it, or load what was compiled ahead.
        SavedModelError: it cannot be expressed for the StableHLO versions that the plugin reads.
        ProgramError: it was compiled ahead for another platform.
        OptionError: options for what was compiled ahead.
    """
    if isinstance(program, SplitProgram):
        return _Parts(program, client, options)
    return _Whole(_executable(program, client, options))


def _executable(program: Program, client: Client, options: CompileOptions | None) -> Executable:
    if not isinstance(program, CompiledProgram):
        return compile_for(client, readable(program, client.plugin), options)
    if options is not None:
        raise OptionError(
            f"program {program.name!r} was compiled ahead of time, for {program.made_for}: "
            f"options for compiling come too late, found {options}"
        )
    try:
        return client.deserialize(program.executable)
    except ProgramError as error:
        raise ProgramError(f"{error}: compile the model for this one") from error


class _Whole:
    def __init__(self, executable: Executable) -> None:
        self._executable = executable

    def run(self, arguments: Sequence[Buffer], consumed: Sequence[int]) -> Sequence[Any]:
        parameters = self._executable.signature.parameters
        donate = [index for index in consumed if parameters[index].donation != "kept"]
        return self._executable.execute(arguments, donate=donate)

    def run_directly(self, arguments: Sequence[Any]) -> Sequence[Buffer] | None:
        return self._executable.call_directly(arguments)

    def close(self) -> None:
        self._executable.close()


class _Parts:
    """Parts on the device and on the host; buffers cross as they are, and nothing is donated."""

    def __init__(
        self, program: SplitProgram, client: Client, options: CompileOptions | None
    ) -> None:
        self._client = client
        self._executables: list[Executable] = []
        self._count = len(program.parts)
        runners = [self._runner(part.runs, options) for part in program.parts]
        self._program = MixedProgram(graph_of(program), segments_of(program), runners)

    def run(self, arguments: Sequence[Buffer], consumed: Sequence[int]) -> Sequence[Any]:
        values = self._program.run(list(arguments), CallRecord(self._count))
        return [self._put(value) for value in values]

    def run_directly(self, arguments: Sequence[Any]) -> Sequence[Buffer] | None:
        return None

    def close(self) -> None:
        for executable in self._executables:
            executable.close()
        self._executables.clear()

    def _runner(self, runs: Program | HostPart, options: CompileOptions | None) -> Runner:
        if not isinstance(runs, Program):
            return partial(_on_host, runs)
        executable = _executable(runs, self._client, options)
        self._executables.append(executable)
        return partial(self._on_device, executable)

    def _on_device(self, executable: Executable, values: list[Any], _: CallRecord) -> Sequence[Any]:
        return executable.execute([self._put(value) for value in values])

    def _put(self, value: Any) -> Any:
        plain = isinstance(value, (bool, int, float, Buffer)) or value is None
        return value if plain else self._client.put(value)


def _on_host(part: HostPart, values: list[Any], _: CallRecord) -> Sequence[Any]:
    return part.run(values)


def graph_of(program: SplitProgram) -> Graph:
    """The parts as nodes of a neutral graph.

    Raises:
        PjrtBridgeError: a value that is read before it is made, or made twice.
    """
    return Graph(
        tuple(range(len(program.parameters))),
        [
            Node(f"{program.name} part {index}", part.inputs, part.outputs)
            for index, part in enumerate(program.parts)
        ],
        program.results,
    )


def segments_of(program: SplitProgram) -> list[Segment]:
    """The parts as segments of that graph."""
    return [
        Segment(part.on_device, (index,), part.inputs, part.outputs)
        for index, part in enumerate(program.parts)
    ]


def readable(program: Program, plugin: PluginCore) -> Program:
    """The program in a StableHLO version that a plugin reads, written again if it has to be.

    Raises:
        SavedModelError: there is no such version; the text names the one found and those needed.
    """
    if not isinstance(program, SavedProgram):
        return program
    oldest, newest = plugin.stablehlo_minimum, plugin.stablehlo_version
    try:
        if oldest is not None and parse_version(program.version) < parse_version(oldest):
            return Program.from_portable_artifact(program.portable_artifact(program.version))
        program.serialize_for(newest)
    except ProgramError as error:
        raise SavedModelError(
            f"program {program.name!r}: version: found StableHLO {program.version}, needed "
            f"{oldest or 'any'} to {newest}, which plugin {plugin.name!r} reads: {error}"
        ) from error
    return program
