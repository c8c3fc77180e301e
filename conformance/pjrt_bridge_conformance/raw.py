"""Calls past the bridge's guards: with sizes, NULLs and arguments that `Api.call` never passes.

Checks make them to see what a plugin does when another framework is careless, or older or newer
than the plugin. A plugin that dies of one takes down a worker, which is a finding.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pjrt_bridge import dtypes
from pjrt_bridge.abi.api import Api
from pjrt_bridge.abi.functions import FUNCTIONS, offset_of
from pjrt_bridge.abi.structs import STRUCTS
from pjrt_bridge.runtime import Buffer, Client, CompileOptions
from pjrt_bridge.stablehlo import Program, TensorType
from pjrt_bridge.stablehlo.builder.constants import Array
from pjrt_bridge_conformance.outcomes import Unsupported

_FUNCTION = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)


def need(api: Api, *functions: str) -> None:
    """Raise `Unsupported` unless the plugin has these functions."""
    missing = [name for name in functions if not api.has(name)]
    if missing:
        raise Unsupported(f"the plugin has no {', '.join(f'PJRT_{name}' for name in missing)}")


def call(api: Api, function: str, struct_size: int, **values: Any) -> Any:
    """Call a function with another `struct_size` than that of the header; its filled args.

    Args:
        api: the table.
        function: its name.
        struct_size: what the args struct claims; memory behind it is zero.
        **values: fields.

    Raises:
        PjrtError: what the function returned.
        Unsupported: the plugin does not have it.
    """
    need(api, function)
    struct = FUNCTIONS[function]
    assert struct is not None
    memory = ctypes.create_string_buffer(max(struct_size, struct.size) + 256)
    args = struct.ctype.from_buffer(memory)
    args.struct_size = struct_size
    for name, value in values.items():
        setattr(args, name, value)
    pointer = ctypes.c_void_p.from_address(api.address + offset_of(function)).value
    assert pointer is not None
    error = _FUNCTION(pointer)(ctypes.addressof(args))
    if error:
        raise api.error(error, function)
    return args


def address(array: Array) -> int:
    """Where an array's elements lie."""
    return int(array.__array_interface__["data"][0])


def default_memory(client: Client) -> int:
    """The PJRT_Memory that buffers on the first device live in.

    Raises:
        Unsupported: the plugin does not tell.
    """
    need(client.api, "Device_DefaultMemory")
    found = client.api.call("Device_DefaultMemory", device=client.devices[0].pointer)
    return int(found.memory)


def buffer(client: Client, pointer: int | None, *shape: int) -> Buffer:
    """The bridge's object over a PJRT_Buffer of float32 on the first device."""
    type = TensorType(shape, dtypes.of("float32"))
    return Buffer.of_pointer(client, pointer, type, client.devices[0])


def size_of(function: str) -> int:
    """Bytes of a function's args struct."""
    struct = FUNCTIONS[function]
    assert struct is not None
    return struct.size


def finish(api: Api, event: int | None) -> None:
    """Wait for an event and destroy it (NULL means: done already).

    Raises:
        PjrtError: the operation failed.
    """
    if not event:
        return
    try:
        api.call("Event_Await", event=event)
    finally:
        api.call("Event_Destroy", event=event)


def compile_bytes(client: Client, code: bytes, options: bytes, format: bytes = b"mlir") -> int:
    """Compile what may be no program; the PJRT_LoadedExecutable, which the caller destroys.

    Raises:
        PjrtError: the plugin refused.
    """
    program = STRUCTS["PJRT_Program"].new()
    memory = [ctypes.create_string_buffer(text, max(len(text), 1)) for text in (code, format)]
    program.code, program.code_size = ctypes.addressof(memory[0]), len(code)
    program.format, program.format_size = ctypes.addressof(memory[1]), len(format)
    made = client.api.call(
        "Client_Compile",
        client=client.handle.pointer,
        program=program,
        compile_options=options,
        compile_options_size=len(options),
    )
    return int(made.executable)


@contextmanager
def compiled(
    client: Client, text: str, options: CompileOptions | None = None
) -> Iterator[tuple[int, int]]:
    """A program's PJRT_LoadedExecutable and PJRT_Executable, while this lasts."""
    code = Program.parse(text).serialize_for(client.plugin.stablehlo_version)
    api = client.api
    loaded = compile_bytes(client, code, (options or CompileOptions()).serialize())
    try:
        inner = api.call("LoadedExecutable_GetExecutable", loaded_executable=loaded).executable
        try:
            yield loaded, inner
        finally:
            api.call("Executable_Destroy", executable=inner)
    finally:
        api.call("LoadedExecutable_Destroy", executable=loaded)
