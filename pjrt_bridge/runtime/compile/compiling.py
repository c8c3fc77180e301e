"""What `Client.compile` does: a checked program to an executable, from disk if it is there.

What the compilation for a topology shares with it is here, too.
"""

from __future__ import annotations

import ctypes
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from pjrt_bridge import timeline
from pjrt_bridge.abi.structs import STRUCTS
from pjrt_bridge.errors import DEVICE_FAILURES, OptionError, PjrtError, ProgramError
from pjrt_bridge.runtime.compile import compile_cache
from pjrt_bridge.runtime.compile.options import CompileOptions
from pjrt_bridge.runtime.compile.progress import working
from pjrt_bridge.runtime.objects.accessors import Extensible
from pjrt_bridge.runtime.objects.executable import Executable
from pjrt_bridge.runtime.transfers import relayout
from pjrt_bridge.stablehlo.program.program import Program
from pjrt_bridge.stablehlo.types import Parameter, Result

if TYPE_CHECKING:
    from pjrt_bridge.runtime.objects.client import Client


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
        ProgramError: not a program, or packed elements in a custom layout.
        UnsupportedDtype: an element type that the plugin does not know.
        OptionError: other options than CompileOptions, or for more devices than `owner` has.
    """
    if not isinstance(program, Program):
        program = Program.parse(program)
    checked = _checked(options, devices, owner)
    signature = program.signature
    values: list[Parameter | Result] = [*signature.parameters, *signature.results]
    for value in values:
        owner.check_dtype(value.type.dtype)
        relayout.check_demand(value)
    return program, checked


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
    owner: Extensible, function: str, program: Program, code: bytes, options: bytes, **where: int
) -> Any:
    """What a compiling function of the plugin gives.

    Timelines show the compilation, and terminals where it takes long.

    Args:
        owner: a client or a topology, pinned.
        function: of the plugin's table.
        program: what is compiled.
        code: the same for the plugin's StableHLO version.
        options: CompileOptions, serialized.
        where: the object for whose devices it compiles, as the function's args struct names it.

    Raises:
        PjrtError: the plugin could not compile it.
    """
    plugin = owner.plugin.name
    what = f"compile {program.name}"
    with timeline.span(what, plugin=plugin), working(f"{what} for {plugin}"):
        return owner.api.call(
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


def compile_program(client: Client, program: Program, options: CompileOptions) -> Executable:
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
        return _compile(client, program, code, serialized, options)
    blob = cache.get(key)
    if blob is not None:
        try:
            with timeline.span(f"load {program.name}", plugin=client.plugin.name):
                found = client.deserialize(blob)
        except (*DEVICE_FAILURES, ProgramError):
            cache.drop(key)
        else:
            found.cached = True
            return found
    started = time.perf_counter()
    made = _compile(client, program, code, serialized, options)
    if time.perf_counter() - started >= compile_cache.WORTH_STORING:
        # A plugin that cannot serialize, or not this program, goes without.
        with suppress(PjrtError):
            cache.put(key, made.serialize())
    return made


def _compile(
    client: Client, program: Program, code: bytes, serialized: bytes, options: CompileOptions
) -> Executable:
    with client.handle.held() as pointer:
        made = ask(client, "Client_Compile", program, code, serialized, client=pointer)
        return Executable(
            client,
            made.executable,
            program.signature,
            program.name,
            options.portable,
            program.custom_calls,
        )
