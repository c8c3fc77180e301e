"""A plugin's table as JAX gets it: a copy in which few functions are other ones.

JAX destroys its objects wherever Python drops them, also while an exception is on its way. A
function that is Python's (`pjrt_bridge.abi.implement`) would fail then, and JAX ends the process
when something cannot be destroyed. JAX knows nothing of the compiler flags without which known
plugins give wrong results (`pjrt_bridge.runtime.core.platforms`), and it writes calls of functions
that its own libraries alone have.
"""

from __future__ import annotations

import ctypes
import signal
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from pjrt_bridge.abi.api import Api
from pjrt_bridge.abi.functions import FUNCTIONS, SLOT, offset_of
from pjrt_bridge.abi.structs import STRUCTS
from pjrt_bridge.abi.values import text
from pjrt_bridge.errors import BridgeWarning, PjrtBridgeError, RegistrationError
from pjrt_bridge.runtime import native
from pjrt_bridge.runtime.core import platforms
from pjrt_bridge.runtime.core.compile_options import serialize_flags
from pjrt_bridge.runtime.core.platforms import PlatformSpec

_ENDS = tuple(name for name in SLOT if name.endswith("_Destroy"))
_FUNCTION = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)

_LATER = 0.02
"""Seconds until an interrupt that came inside a call is repeated outside of it."""

_kept: list[object] = []
"""JAX keeps what it is given until the process ends."""


def table_for_jax(
    api: Api, *, guarded: bool, rewrite: Callable[[bytes], bytes] | None = None
) -> int:
    """Address of the copy, which lives as long as the process.

    Args:
        api: the plugin's table.
        rewrite: gives the code of a program that the plugin is to compile, for JAX's code. Where it
            raises, the plugin gets JAX's, and says what is wrong with that.
        guarded: its functions may be Python's, so those that destroy set a pending exception aside.

    Raises:
        RegistrationError: guards are needed, and the compiled module is missing or has none left.
    """
    memory = ctypes.create_string_buffer(api.struct_size + 8)
    start = ctypes.addressof(memory)
    address = start + -start % 8
    ctypes.memmove(address, api.address, api.struct_size)
    compile_ = _FUNCTION(_compile_with_flags(api, rewrite))
    _slot(address, "Client_Compile").value = ctypes.cast(compile_, ctypes.c_void_p).value
    if guarded:
        _guard(address, api)
    _kept.extend((memory, compile_, api))
    return address


def _slot(address: int, function: str) -> ctypes.c_void_p:
    return ctypes.c_void_p.from_address(address + offset_of(function))


def _compile_with_flags(
    api: Api, rewrite: Callable[[bytes], bytes] | None
) -> Callable[[int], int | None]:
    struct = FUNCTIONS["Client_Compile"]
    assert struct is not None
    pointer = _slot(api.address, "Client_Compile").value
    assert pointer is not None  # A table without it is no usable one.
    compile_ = _FUNCTION(pointer)
    # Looked up here, and not in the midst of a call from C.
    known = platforms.known()

    def call(address: int) -> int | None:
        args = struct.ctype.from_address(address)
        args.executable = None
        given, size = args.compile_options, args.compile_options_size
        # The last of two values of a flag counts, so the caller's stand behind.
        options = _flags(api, args.client, known) + ctypes.string_at(given, size)
        written = args.program
        program = None if rewrite is None else _rewritten(written, rewrite)
        while True:
            # A signal's handler may raise here. Nothing may be raised into C, where it would mean
            # success, and what a call has returned by then is lost.
            try:
                args.compile_options = ctypes.cast(ctypes.c_char_p(options), ctypes.c_void_p).value
                args.compile_options_size = len(options)
                args.program = written if program is None else ctypes.addressof(program)
                failed: int | None = compile_(address)
                if failed and len(options) > size:
                    # A version of the plugin that does not know the flags may do without them.
                    api.error(failed, "Client_Compile")
                    options = ctypes.string_at(given, size)
                    continue
                return failed
            except BaseException as error:
                if isinstance(error, KeyboardInterrupt):
                    threading.Timer(_LATER, _interrupt, [threading.get_ident()]).start()
                if args.executable:
                    return None
            finally:
                args.compile_options, args.compile_options_size = given, size
                args.program = written

    return call


def _rewritten(address: int, rewrite: Callable[[bytes], bytes]) -> Any:
    """A PJRT_Program with its code rewritten, which it keeps alive; None where that is the same."""
    struct = STRUCTS["PJRT_Program"].ctype
    program = struct.from_buffer_copy(struct.from_address(address))
    code = ctypes.string_at(program.code, program.code_size)
    # Nothing may be raised into C.
    with suppress(Exception):
        found = rewrite(code)
        if found != code:
            program.code = ctypes.cast(ctypes.c_char_p(found), ctypes.c_void_p).value
            program.code_size = len(found)
            program.kept = found
            return program
    return None


def _interrupt(thread: int) -> None:
    signal.pthread_kill(thread, signal.SIGINT)


def _flags(api: Api, client: Any, known: Mapping[str, PlatformSpec]) -> bytes:
    try:
        found = api.call("Client_PlatformName", client=client)
    except PjrtBridgeError:
        return b""
    platform = known.get(text(found.platform_name, found.platform_name_size))
    if platform is None:
        return b""
    # Nothing may be raised into C, where warnings may be errors.
    with suppress(BridgeWarning):
        platform.warn()
    spec = platform.for_api(api.version)
    return serialize_flags({**spec.tuning_flags, **spec.compiler_flags})


def _guard(address: int, api: Api) -> None:
    if native.module is None:
        raise RegistrationError(
            f"plugin {api.plugin!r} is no library but a table in memory, whose functions JAX may "
            "call while an exception is pending; what makes that safe is pjrt_bridge's compiled "
            "module, which is missing: install it again where there is a C compiler, without "
            "PJRT_BRIDGE_DISPATCH=python"
        )
    for name in _ENDS:
        if api.has(name):
            slot = _slot(address, name)
            try:
                slot.value = native.module.guard(slot.value)
            except OverflowError as error:
                raise RegistrationError(f"plugin {api.plugin!r}: {error}") from error
