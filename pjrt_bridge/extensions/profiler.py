"""Profiler: what the plugin's own profiler recorded, as an XSpace.

The extension points to a table of its own, with errors of its own.

Source: pjrt_c_api_profiler_extension.h, profiler_c_api.h (version 1).
"""

from __future__ import annotations

import ctypes
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from pjrt_bridge import wire
from pjrt_bridge.abi.chain import Extension
from pjrt_bridge.abi.extension_structs import PROFILER_API, by_name
from pjrt_bridge.errors import ExtensionUnavailable, PjrtError
from pjrt_bridge.extensions.base import Accessor
from pjrt_bridge.runtime.ownership.process import plugins_are_there
from pjrt_bridge.wrong_arguments import checked_methods, require_name

if TYPE_CHECKING:
    from pjrt_bridge.runtime import Client

_PROTOTYPE = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)
_LARGEST_PROFILE = 1 << 34

DEFAULT_OPTIONS = b"".join(
    wire.varint(number, value) for number, value in ((2, 2), (3, 1), (5, 1), (7, 1))
)
"""A ProfileOptions message (profiler_options.proto): levels of tracing of the host 2 and of devices
1, version 1, programs enclosed. Without a message XLA's profilers trace nothing."""


@checked_methods
class Profiler(Accessor):
    """The plugin's profiler: a session of it is a `with` block.

    ```python
    with client.extension(Profiler).session() as session:
        executable(argument)
    session.data  # an XSpace
    ```
    """

    TABLE = by_name("Profiler")

    def __init__(self, client: Client, link: Extension) -> None:
        super().__init__(client, link)
        self._api = self.pointer("profiler_api")
        self._size = ctypes.c_size_t.from_address(self._api).value if self._api else 0

    def session(self, options: bytes = DEFAULT_OPTIONS) -> Session:
        """A session that has not begun.

        Args:
            options: a serialized ProfileOptions message.

        Raises:
            PjrtError: the plugin refused.
        """
        memory = ctypes.create_string_buffer(options)
        made = self.invoke("create", options=ctypes.addressof(memory), options_size=len(options))
        return Session(self, int(made.profiler))

    def invoke(self, function: str, **values: Any) -> Any:
        """Call a function of the profiler's own table; its args struct comes back.

        Raises:
            ExtensionUnavailable: the slot is empty.
            PjrtError: what the plugin returned.
        """
        args, error = self._call(function, **values)
        if error:
            raise self._error(error, function)
        return args

    def _call(self, function: str, **values: Any) -> tuple[Any, int | None]:
        require_name(function, PROFILER_API.functions, "function of the profiler")
        struct, needed = PROFILER_API.functions[function], PROFILER_API.size_needed(function)
        pointer = None
        if self._api and self._size >= needed:
            at = self._api + PROFILER_API.offset_of(function)
            pointer = ctypes.c_void_p.from_address(at).value
        if pointer is None or struct is None:
            raise ExtensionUnavailable(
                f"plugin {self.client.plugin.name!r} does not offer {function} of the extension "
                f"Profiler: the table that it points to has {self._size} bytes, {needed} are "
                "needed, or leaves the slot empty",
                extension="Profiler",
                function=function,
                found=self._size,
                needed=needed,
            )
        self.client.api.check_process()
        args = struct.new(**values)
        returned = _PROTOTYPE(pointer)(ctypes.addressof(args))
        # These return nothing; the register holds what was there before.
        return args, None if function in PROFILER_API.void else returned

    def _error(self, error: int, function: str) -> PjrtError:
        message, _ = self._call("error_message", error=error)
        text = ctypes.string_at(message.message, message.message_size) if message.message else b""
        code, _ = self._call("error_get_code", error=error)
        self._call("error_destroy", error=error)
        return PjrtError.from_code(
            int(code.code),
            text.decode(errors="replace"),
            plugin=self.client.plugin.name,
            function=f"Profiler_{function}",
        )


class Session:
    """One profile of a plugin: begins and ends with a `with` block.

    Attributes:
        data: the XSpace; empty until the block has ended.
    """

    def __init__(self, profiler: Profiler, pointer: int) -> None:
        self._profiler = profiler
        self._pointer = pointer
        self._plugins_are_there = plugins_are_there
        self.data = b""

    def __enter__(self) -> Self:
        try:
            self._profiler.invoke("start", profiler=self._pointer)
        except BaseException:
            self._destroy()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # A block that ends with the interpreter ends too late for the plugin.
        if not self._plugins_are_there():
            return
        try:
            self._profiler.invoke("stop", profiler=self._pointer)
            self.data = self._collect()
        finally:
            self._destroy()

    def _collect(self) -> bytes:
        # Asked twice, as the header has it: the first call tells the size, the second fills memory
        # of the caller's. XLA's profilers give memory of their own at the first call, and their
        # second does nothing.
        args = self._profiler.invoke("collect_data", profiler=self._pointer)
        size = int(args.buffer_size_in_bytes)
        if not 0 < size <= _LARGEST_PROFILE:
            return b""
        if args.buffer:
            return _without_terminator(ctypes.string_at(args.buffer, size))
        memory = ctypes.create_string_buffer(size)
        self._profiler.invoke(
            "collect_data",
            profiler=self._pointer,
            buffer=ctypes.addressof(memory),
            buffer_size_in_bytes=size,
        )
        return _without_terminator(memory.raw)

    def _destroy(self) -> None:
        pointer, self._pointer = self._pointer, 0
        if pointer:
            self._profiler.invoke("destroy", profiler=pointer)


def _without_terminator(data: bytes) -> bytes:
    """An XSpace without the zero byte that XLA's profilers put behind it.

    A zero is no key of a field, but may end one, so the fields decide.
    """
    if not data.endswith(b"\0"):
        return data
    try:
        for _ in wire.fields(data[:-1]):
            pass
    except ValueError:
        return data
    return data[:-1]
