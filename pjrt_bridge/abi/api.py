"""Api: checked calls of the functions in a plugin's table.

`api.call("Buffer_ToHostBuffer", src=..., dst=...)` is the one way from the bridge into a plugin. It
builds the args struct, checks that the slot lies within the table's `struct_size` and is not NULL,
turns a returned `PJRT_Error` into an exception and gives back the args struct with its outputs.

The table itself is checked once, when an `Api` is made: nothing in it is called before its size,
version and pointers have been found plausible.
"""

from __future__ import annotations

import ctypes
import os
import threading
from typing import Any, NamedTuple, Protocol

from pjrt_bridge.abi.functions import FIRST_OFFSET, FUNCTIONS, SLOT, offset_of
from pjrt_bridge.abi.memory import MemoryMap
from pjrt_bridge.abi.structs import STRUCTS, Struct
from pjrt_bridge.errors import (
    ErrorCode,
    ForkedProcess,
    PjrtBridgeError,
    PjrtError,
    PluginIncompatible,
)

MAJOR_VERSION = 0
"""The only major version of the PJRT C API so far; majors must match."""

_LARGEST_TABLE = 1 << 16

REQUIRED = (
    "Error_Destroy",
    "Error_Message",
    "Error_GetCode",
    "Plugin_Initialize",
    "Event_Destroy",
    "Event_IsReady",
    "Event_Await",
    "Client_Create",
    "Client_Destroy",
    "Client_PlatformName",
    "Client_PlatformVersion",
    "Client_ProcessIndex",
    "Client_AddressableDevices",
    "Client_Compile",
    "Client_BufferFromHostBuffer",
    "DeviceDescription_Id",
    "DeviceDescription_ProcessIndex",
    "DeviceDescription_Attributes",
    "DeviceDescription_Kind",
    "DeviceDescription_ToString",
    "Device_GetDescription",
    "Device_LocalHardwareId",
    "Executable_Destroy",
    "Executable_NumOutputs",
    "Executable_NumPartitions",
    "LoadedExecutable_Destroy",
    "LoadedExecutable_GetExecutable",
    "LoadedExecutable_Execute",
    "Buffer_Destroy",
    "Buffer_ElementType",
    "Buffer_Dimensions",
    "Buffer_Device",
    "Buffer_IsDeleted",
    "Buffer_ToHostBuffer",
    "Buffer_ReadyEvent",
)
"""Functions without which a plugin can do nothing for the bridge."""

_RETURNS_ERROR = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)
_RETURNS_NOTHING = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
VOID_FUNCTIONS = frozenset({"Error_Destroy", "Error_Message"})
"""They return void: reading their return register as a pointer would invent an error."""

_forks = 0
_last_caller: int | None = None
# What a table of this process has in `_forks`, as long as every thread may call it.
_unrestricted = 0


def _count_fork() -> None:
    global _forks, _last_caller, _unrestricted
    _forks += 1
    _last_caller, _unrestricted = None, _forks


os.register_at_fork(after_in_child=_count_fork)


def restrict_calls(thread: int) -> None:
    """Let one thread alone call plugins from now on, in this process; calls end other threads."""
    global _last_caller, _unrestricted
    _last_caller, _unrestricted = thread, -1


class PluginFunction(NamedTuple):
    """A function of a plugin that can be called.

    Attributes:
        function: the C function.
        args: ctypes class of its args struct.
        sizes: what its `struct_size` holds; nothing where the struct has none.
    """

    function: Any
    args: type[Any]
    sizes: tuple[int, ...]


class Owner(Protocol):
    """The owner of an object that a plugin is about to make.

    Attributes:
        made: where the plugin writes the pointer.
    """

    made: Any


class Api:
    """A checked PJRT_Api table.

    Attributes:
        plugin: name used in errors.
        address: where the table lies.
        struct_size: bytes of the table that the plugin filled.
        version: (major, minor) that the plugin states.

    Raises:
        PluginIncompatible: wrong major version; a size, version or pointer that no real table has;
            a required function is missing.
    """

    def __init__(self, address: int, *, plugin: str, keepalive: object = None) -> None:
        self.plugin = plugin
        self.address = address
        self._keepalive = keepalive
        self._forks = _forks
        self._entries: dict[str, PluginFunction] = {}
        header = self._checked_header()
        self.struct_size: int = header.struct_size
        self.version: tuple[int, int] = (header.version.major_version, header.version.minor_version)
        self._check_functions()

    def __repr__(self) -> str:
        major, minor = self.version
        return f"<Api {major}.{minor} of plugin {self.plugin!r}, {self.struct_size} bytes>"

    @property
    def extension_start(self) -> int | None:
        """Address of the first extension, or None."""
        return ctypes.c_void_p.from_address(self.address + 8).value

    @property
    def usable(self) -> bool:
        """False in a forked child: the plugin's threads stayed behind in the parent."""
        return self._forks == _forks

    def has(self, function: str) -> bool:
        """Whether the table reaches this function, and it is not NULL."""
        return self._pointer(function) is not None

    def check_process(self) -> None:
        """Refuse to go on where plugins must not be called.

        Raises:
            ForkedProcess: the table was loaded before this process was forked.
            SystemExit: the process ends, and another thread is at that.
        """
        if not self.usable:
            raise ForkedProcess(
                f"plugin {self.plugin!r} was loaded before fork(); its threads do not exist in "
                f"this child process. Start workers with the 'spawn' or 'forkserver' method."
            )
        if _last_caller is not None and _last_caller != threading.get_ident():
            raise SystemExit

    def call(self, function: str, **values: Any) -> Any:
        """Call a function; give its args struct back, with the outputs filled.

        Values are ints, bools, None, or ctypes arrays and structs and bytes, of which the address
        is passed; those stay alive for the length of the call only.

        Raises:
            PjrtError: the subclass that belongs to the returned code; `Unimplemented` where the
                table ends before the function or its slot is NULL.
            ForkedProcess: the table was loaded before this process was forked.
        """
        return self.invoke(self._entries.get(function) or self._resolve(function), function, values)

    def call_for(self, owner: Owner, function: str, **values: Any) -> Any:
        """`call`, and give the args struct to the owner of what the plugin writes into it.

        The owner has it before the plugin is called. So an exception that comes at any moment, such
        as KeyboardInterrupt, cannot lose what the plugin made.

        Raises:
            As `call`; the owner has nothing then.
        """
        entry = self._entries.get(function) or self._resolve(function)
        return self.invoke(entry, function, values, owner)

    def invoke(
        self,
        entry: PluginFunction,
        function: str,
        values: dict[str, Any],
        owner: Owner | None = None,
    ) -> Any:
        """Call a function of this table, or of an extension; see `call` and `call_for`."""
        if self._forks != _unrestricted:
            self.check_process()
        try:
            args = entry.args(*entry.sizes, **values)
        except TypeError:
            plain = {name: _address(value) for name, value in values.items()}
            args = entry.args(*entry.sizes, **plain)
        address = ctypes.addressof(args)
        if owner is not None:
            # Python raises what comes from outside after calls and not after assignments: whoever
            # finds something in `made` knows that the plugin was called.
            owner.made = args
        error = entry.function(address)
        if error:
            if owner is not None:
                owner.made = None
            raise self.error(error, function)
        return args

    @staticmethod
    def entry(pointer: int, args: Struct, *, void: bool = False) -> PluginFunction:
        """A function of a table, with its args struct; `void` returns no error."""
        has_size = args.fields[0].name == "struct_size"
        prototype = _RETURNS_NOTHING if void else _RETURNS_ERROR
        return PluginFunction(prototype(pointer), args.ctype, (args.size,) if has_size else ())

    def error(self, error: int, function: str) -> PjrtError:
        """Turn a PJRT_Error into an exception, and destroy it."""
        message = self.call("Error_Message", error=error)
        text = ctypes.string_at(message.message, message.message_size) if message.message else b""
        code = self._code(error)
        self.call("Error_Destroy", error=error)
        return PjrtError.from_code(
            code, text.decode(errors="replace"), plugin=self.plugin, function=function
        )

    def _code(self, error: int) -> int:
        entry = self._entries.get("Error_GetCode") or self._resolve("Error_GetCode")
        args = entry.args(*entry.sizes, error=error)
        # Through `call` an error about this error would be asked for its code, and so on.
        another = entry.function(ctypes.addressof(args))
        if another:
            self.call("Error_Destroy", error=another)
            return ErrorCode.UNKNOWN
        # Whatever it is, it is no success.
        return int(args.code) or ErrorCode.UNKNOWN

    def _pointer(self, function: str) -> int | None:
        offset = offset_of(function)
        if self.struct_size < offset + 8:
            return None
        return ctypes.c_void_p.from_address(self.address + offset).value

    def _resolve(self, function: str) -> PluginFunction:
        struct = FUNCTIONS.get(function)
        if struct is None:
            raise PjrtBridgeError(f"PJRT_{function} is not declared in pjrt_bridge.abi.functions")
        pointer = self._pointer(function)
        if pointer is None:
            needed = offset_of(function) + 8
            why = (
                "the slot is NULL"
                if self.struct_size >= needed
                else f"its table has {self.struct_size} bytes, the function needs {needed}"
            )
            raise PjrtError.from_code(
                ErrorCode.UNIMPLEMENTED,
                f"not offered by plugin API {self.version[0]}.{self.version[1]}: {why}",
                plugin=self.plugin,
                function=function,
            )
        entry = self.entry(pointer, struct, void=function in VOID_FUNCTIONS)
        self._entries[function] = entry
        return entry

    def _checked_header(self) -> Any:
        memory = MemoryMap.now()

        def readable(size: int) -> bool:
            return memory is None or memory.allows(self.address, size, "r")

        if not self.address or self.address % 8 or not readable(FIRST_OFFSET):
            raise self._incompatible(f"GetPjrtApi returned {self.address:#x}, which is no table")
        header = _TableHeader.from_address(self.address)
        size = header.struct_size
        version = header.version
        if version.major_version != MAJOR_VERSION or not 0 <= version.minor_version < 10_000:
            raise self._incompatible(
                f"it states PJRT API {version.major_version}.{version.minor_version}, "
                f"this bridge speaks {MAJOR_VERSION}.x; install a plugin of that major version"
            )
        if size % 8 or not FIRST_OFFSET < size <= _LARGEST_TABLE or not readable(size):
            raise self._incompatible(f"its table claims {size} bytes, which no PJRT_Api has")
        return header

    def _check_functions(self) -> None:
        missing = [name for name in REQUIRED if not self.has(name)]
        if missing:
            raise self._incompatible(
                f"its table ({self.struct_size} bytes) lacks functions that every client needs: "
                + ", ".join(missing)
            )
        memory = MemoryMap.now()
        for name in SLOT:
            pointer = self._pointer(name)
            if pointer and memory and not memory.allows(pointer, 1, "x"):
                raise self._incompatible(f"PJRT_{name} points to {pointer:#x}, which is no code")

    def _incompatible(self, why: str) -> PluginIncompatible:
        return PluginIncompatible(f"plugin {self.plugin!r} cannot be used: {why}")


class _TableHeader(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("extension_start", ctypes.c_void_p),
        ("version", STRUCTS["PJRT_Api_Version"].ctype),
    ]


def _address(value: Any) -> Any:
    if isinstance(value, (ctypes.Array, ctypes.Structure)):
        return ctypes.addressof(value)
    if isinstance(value, bytes):
        return ctypes.cast(ctypes.c_char_p(value), ctypes.c_void_p).value
    return value
