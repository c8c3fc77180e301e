"""The steps of `Client.compile` and `deserialize`: a program, or its bytes, to an executable.

What the compilation for a topology shares with it is here, too.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from pjrt_bridge import dtypes, timeline
from pjrt_bridge.abi.structs import STRUCTS
from pjrt_bridge.errors import (
    DEVICE_FAILURES,
    OptionError,
    PjrtError,
    ProgramError,
    UnsupportedDtype,
)
from pjrt_bridge.runtime.buffers import relayout
from pjrt_bridge.runtime.compile import compile_cache
from pjrt_bridge.runtime.compile.interruptible import interruptible
from pjrt_bridge.runtime.compile.progress import working
from pjrt_bridge.runtime.compile.serialized import unpack
from pjrt_bridge.runtime.core.accessors import Extensible
from pjrt_bridge.runtime.core.client_core import ClientCore
from pjrt_bridge.runtime.core.compile_options import CompileOptions
from pjrt_bridge.runtime.core.platforms import CallForm, PlatformSpec
from pjrt_bridge.runtime.objects.executable import Executable
from pjrt_bridge.runtime.ownership.handles import Handle
from pjrt_bridge.stablehlo.partitioning.divisible import divisible
from pjrt_bridge.stablehlo.partitioning.propagation import closed
from pjrt_bridge.stablehlo.program.program import Program
from pjrt_bridge.stablehlo.sharding.hlo import check_tiles
from pjrt_bridge.stablehlo.types import Parameter, Result, Signature


def prepared(
    owner: Extensible,
    devices: int,
    program: Program | str | bytes,
    options: CompileOptions | None,
) -> tuple[Program, CompileOptions]:
    """A program, and options for it, that a plugin survives.

    Args:
        owner: a client or a topology.
        devices: how many it has.
        program: what the user gave.
        options: likewise; None stands for the defaults.

    Raises:
        ProgramError: not a program, packed elements in a custom layout, or a dimension that does
            not divide into equal shards.
        UnsupportedDtype: an element type that the plugin does not know.
        OptionError: other options than CompileOptions, or for more devices than `owner` has.
    """
    if not isinstance(program, Program):
        program = Program.parse(program)
    checked = _checked(options, devices, owner)
    if checked.num_partitions > 1:
        if program.may_be_sharded:
            # Without the flag plugins ignore or misread what Shardy's attributes say.
            program, checked = closed(program), replace(checked, use_shardy_partitioner=True)
        program = divisible(program)
    signature = program.signature
    values: list[Parameter | Result] = [*signature.parameters, *signature.results]
    for value in values:
        owner.check_dtype(value.type.dtype)
        relayout.check_demand(value)
    return program, checked


def check_for(program: Program, platform: PlatformSpec, *, plugin: str) -> None:
    """Refuse what is known to end the process in the compiler of a platform.

    Args:
        program: what is to be compiled.
        platform: what is known of it.
        plugin: name for messages.

    Raises:
        UnsupportedDtype: the program has a constant of a fatal type.
        ProgramError: it has a call of the compiler's own in a form that the compiler does not take.
    """
    _check_constants(program, platform.fatal_constants, plugin=plugin)
    _check_calls(program, platform.call_forms, plugin=plugin)


def _check_constants(program: Program, fatal: Collection[str], *, plugin: str) -> None:
    """Refuse constants on which a plugin's compiler ends the process.

    Args:
        program: what is to be compiled.
        fatal: names of their element types (`PlatformSpec.fatal_constants`).
        plugin: name for messages.

    Raises:
        UnsupportedDtype: the program has such a constant.
    """
    for name in fatal:
        if program.has_constant(dtypes.of(name)):
            raise UnsupportedDtype(
                f"program {program.name!r} has a constant of {name}, on which this version of "
                f"plugin {plugin!r} ends the process; pass it as an argument instead"
            )


def _check_calls(program: Program, forms: Mapping[str, CallForm | None], *, plugin: str) -> None:
    """Refuse custom calls of the compiler's own that it does not check itself.

    Args:
        program: what is to be compiled.
        forms: their targets (`PlatformSpec.call_forms`).
        plugin: name for messages.

    Raises:
        ProgramError: the program has one that no program may have, or in another form.
    """
    if not program.custom_calls & forms.keys():
        return
    for target, operands, results in sorted(program.call_forms()):
        form = forms.get(target, CallForm(operands, results))
        if form is None:
            raise ProgramError(
                f"program {program.name!r} calls {target!r}, which plugin {plugin!r} has for its "
                "own use; in a program it ends the process"
            )
        if (operands, results) != form:
            raise ProgramError(
                f"program {program.name!r} calls {target!r} with {operands} operands and "
                f"{results} results, expected {form.operands} and {form.results}; plugin "
                f"{plugin!r} does not check that, and ends the process"
            )


def _checked(options: CompileOptions | None, devices: int, owner: object) -> CompileOptions:
    if options is None:
        return CompileOptions()
    if not isinstance(options, CompileOptions):
        raise OptionError(f"options: found {options!r}, expected CompileOptions")
    # Plugins allocate for as many devices as they are told, before they look for them.
    if options.num_devices > devices:
        raise OptionError(
            f"CompileOptions: {options.num_replicas} replicas of {options.num_partitions} "
            f"partitions need {options.num_devices} devices, {owner!r} has {devices}"
        )
    return options


def ask(
    owner: Extensible,
    made: Handle,
    function: str,
    program: Program,
    code: bytes,
    options: bytes,
    **where: int,
) -> None:
    """Call a function of the plugin that compiles.

    Timelines show the compilation, and terminals where it takes long.

    Args:
        owner: a client or a topology, pinned.
        made: owns what the plugin gives.
        function: of the plugin's table.
        program: what is compiled.
        code: the same for the plugin's StableHLO version.
        options: CompileOptions, serialized.
        where: the object for whose devices it compiles, as the function's args struct names it.

    Raises:
        ProgramError: a sharding on which compilers end the process.
        PjrtError: the plugin could not compile it.
    """
    check_tiles(code)
    plugin = owner.plugin.name
    what = f"compile {program.name}"
    with timeline.span(what, plugin=plugin), working(f"{what} for {plugin}"):
        made.make(
            function,
            program=_encoded(code),
            compile_options=options,
            compile_options_size=len(options),
            **where,
        )


def _encoded(code: bytes) -> Any:
    """A PJRT_Program, which keeps alive what it points to."""
    struct = STRUCTS["PJRT_Program"].new()
    struct.kept = memory = [
        ctypes.create_string_buffer(code, len(code)),
        ctypes.create_string_buffer(b"mlir", 4),
    ]
    struct.code, struct.format = map(ctypes.addressof, memory)
    struct.code_size, struct.format_size = map(len, memory)
    return struct


def compile_program(client: ClientCore, program: Program, options: CompileOptions) -> Executable:
    """Compile a program, or load what was compiled of it before.

    Raises:
        ProgramError: it cannot be expressed for the plugin's StableHLO version.
        PjrtError: the plugin could not compile it.
    """
    code = program.serialize_for(client.plugin.stablehlo_version)
    serialized = options.serialize()
    cache = compile_cache.compile_cache()
    key = None
    if cache is not None:
        key = compile_cache.key_of(client, code, serialized, program.custom_calls)
    if cache is None or key is None:
        return interruptible(lambda: _compile(client, program, code, serialized, options))
    blob = cache.get(key)
    if blob is not None:
        try:
            with timeline.span(f"load {program.name}", plugin=client.plugin.name):
                found = load(client, blob)
        except (*DEVICE_FAILURES, ProgramError):
            cache.drop(key)
        else:
            found.cached = True
            return found
    started = time.perf_counter()
    made = interruptible(lambda: _compile(client, program, code, serialized, options))
    if time.perf_counter() - started >= compile_cache.WORTH_STORING:
        # Where the plugin cannot serialize the program it is not kept.
        with suppress(PjrtError):
            cache.put(key, made.serialize())
    return made


def _compile(
    client: ClientCore, program: Program, code: bytes, serialized: bytes, options: CompileOptions
) -> Executable:
    made = Handle(client.api, "LoadedExecutable", client.handle)
    with client.handle.held() as pointer, made:
        ask(client, made, "Client_Compile", program, code, serialized, client=pointer)
        return Executable(
            client,
            made,
            program.signature,
            program.name,
            options.portable,
        )


def load(client: ClientCore, data: bytes | bytearray | memoryview) -> Executable:
    """The executable of serialized bytes; see `Client.deserialize`."""
    header, blob = unpack(data)
    ahead = header.topology is not None and header.platform.startswith(f"{client.platform_name} ")
    if not ahead and header.platform != client.platform:
        raise ProgramError(
            f"the serialized executable {header.name!r} was made for {header.platform!r}, "
            f"this client runs {client.platform!r}"
        )
    signature = Signature.from_json(header.signature)
    header.check(client.plugin.library)
    made = Handle(client.api, "LoadedExecutable", client.handle, out="loaded_executable")
    with client.handle.held() as pointer, made:
        made.make(
            "Executable_DeserializeAndLoad",
            client=pointer,
            serialized_executable=blob,
            serialized_executable_size=len(blob),
        )
        found = Executable(client, made, signature, header.name, header.portable)
        found.origin = bytes(data)
        return found
