"""FFI: functions of Python or C that a program calls by name (`stablehlo.custom_call`, version 4).

A Python function takes the operands, then the results, as NumPy arrays, and the attributes of
`backend_config` by name; it fills the results:

    def scale(x, out, *, factor):
        np.multiply(x, factor, out=out)

    client.extension(FFI).register("scale", scale)

Operands come in the order that the call's `operand_layouts` say. Without them the compiler chooses,
and a function that reads them as row-major gets a transposed array; so state them.

A plugin takes handlers of any FFI version without an error, and does not find those of a version
that it does not speak when it compiles. So a Python function states the version of the plugin that
asks, and every registration is tried with a small program.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

from pjrt_bridge import dtypes
from pjrt_bridge.abi.extension_structs import ExtensionTable, by_name
from pjrt_bridge.abi.ffi_structs import COMMAND_BUFFER_COMPATIBLE, STRUCTS
from pjrt_bridge.errors import PjrtError, RegistrationError
from pjrt_bridge.extensions import call_frame
from pjrt_bridge.extensions.base import Accessor
from pjrt_bridge.runtime.ownership.callbacks import calling_back
from pjrt_bridge.stablehlo import Builder, Program
from pjrt_bridge.stablehlo.types import TensorType
from pjrt_bridge.wrong_arguments import checked_methods

_HANDLER = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)
_C_FUNCTION: Any = _HANDLER.__base__
_PROBE = "pjrt_bridge.version"


@dataclass(frozen=True)
class Registered:
    """A custom call that a plugin knows.

    Attributes:
        function: what was registered.
        handler: the C function; plugins keep its address until the process ends.
    """

    function: object
    handler: Any

    @property
    def address(self) -> int:
        """Address of the C function."""
        return ctypes.cast(self.handler, ctypes.c_void_p).value or 0


_lock = threading.Lock()
# (API table, platform, target): a plugin has one registry for all its clients, and forgets nothing.
_registered: dict[tuple[int, str, str], Registered] = {}
# Handlers that the plugin was shown, and may call as long as the process lives.
_kept: list[Registered] = []


@checked_methods
class FFI(Accessor):
    """Custom calls, as pjrt_c_api_ffi_extension.h 3 and xla/ffi/api/c_api.h have them."""

    TABLE: ClassVar[ExtensionTable] = by_name("FFI")

    @property
    def platform(self) -> str:
        """Name of the client's platform in the plugin's registry of handlers."""
        return self.client.platform_spec.ffi_name or self.client.platform_name.upper()

    @cached_property
    def version(self) -> tuple[int, int]:
        """(major, minor) of the FFI API that the plugin speaks.

        Raises:
            ExtensionUnavailable: the plugin registers no handlers.
            RegistrationError: the plugin does not talk about versions.
        """
        if self._asked is None:
            raise RegistrationError(
                f"plugin {self.client.plugin.name!r} takes handlers without asking for their "
                "version of the FFI API, and does not tell its own"
            )
        return self._asked[0]

    @cached_property
    def _asked(self) -> tuple[tuple[int, int], int] | None:
        """The plugin's FFI version and its XLA_FFI_Api, if it asks handlers for theirs."""
        seen: list[tuple[tuple[int, int], int]] = []

        def handler(frame: int) -> None:
            api = STRUCTS["XLA_FFI_CallFrame"].ctype.from_address(frame).api
            seen.append((call_frame.api_version(frame), api))
            _state_version(frame)

        entry = Registered(handler, _HANDLER(handler))
        _kept.append(entry)
        self._hand_over(_PROBE, entry.address, 0)
        return seen[0] if seen else None

    def register(
        self,
        target: str,
        function: Callable[..., None] | int,
        *,
        command_buffer: bool = False,
    ) -> None:
        """Let programs of the client's plugin call a function.

        Args:
            target: the `call_target_name`; a name stays taken until the process ends.
            function: a Python function of (*operands, *results, **attributes), which the plugin
                calls on any of its threads, in its floating-point mode (XLA's CPU flushes
                subnormal numbers); it must not keep the arrays, and must not use buffers or
                executables. Or a C function of the type XLA_FFI_Handler: its address, or a
                ctypes function, which is kept.
            command_buffer: the function always does the same and may be recorded.

        Raises:
            ExtensionUnavailable: the plugin registers no handlers.
            RegistrationError: the name is taken by another function; the plugin does not find the
                handler, whose FFI version it does not speak; a Python function for a plugin whose
                arrays are not in host memory.
        """
        key = (self.client.api.address, self.platform, target)
        with _lock:
            found = _registered.get(key)
        if found is not None:
            if found.function != function:
                raise RegistrationError(
                    f"custom call {target!r} of plugin {self.client.plugin.name!r} is taken by "
                    f"{found.function!r}; a name stays taken until the process ends"
                )
            return
        entry = Registered(function, self._handler(target, function))
        traits = COMMAND_BUFFER_COMPATIBLE if command_buffer else 0
        with _lock:
            _registered[key] = entry
        try:
            self._hand_over(target, entry.address, traits)
            self._try_out(target, entry)
        except BaseException:
            # The plugin may hold the address all the same.
            _kept.append(_registered.pop(key))
            raise

    def _handler(self, target: str, function: Callable[..., None] | int) -> Any:
        if isinstance(function, int):
            return ctypes.c_void_p(function)
        if isinstance(function, _C_FUNCTION):
            return function
        if not callable(function):
            raise RegistrationError(
                f"custom call {target!r}: found {function!r}, expected a function or its address"
            )
        if not self.client.shares_host_memory:
            raise RegistrationError(
                f"custom call {target!r}: Python functions need arrays in host memory, where "
                f"plugin {self.client.plugin.name!r} does not keep them"
            )
        return _HANDLER(_python_handler(function))

    def _hand_over(self, target: str, address: int, traits: int) -> None:
        name, platform = target.encode(), self.platform.encode()
        self.call(
            "register_handler",
            target_name=name,
            target_name_size=len(name),
            handler=address,
            platform_name=platform,
            platform_name_size=len(platform),
            traits=traits,
        )

    def _try_out(self, target: str, entry: Registered) -> None:
        try:
            self.client.compile(_program(target)).close()
        except PjrtError as error:
            raise RegistrationError(
                f"custom call {target!r}: plugin {self.client.plugin.name!r} took the handler and "
                f"does not find it{self._versions(entry)}: {error.message}"
            ) from error

    def _versions(self, entry: Registered) -> str:
        if self._asked is None:
            return ""
        version, api = self._asked
        own = call_frame.stated_version(entry.address, api)
        return f" (the plugin speaks FFI {_dotted(version)}, the handler states {_dotted(own)})"


def _dotted(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"


def _program(target: str) -> Program:
    builder = Builder(name="try_out")
    results = builder.custom_call(
        target, [], [TensorType((1,), dtypes.of("float32"))], api_version=4, backend_config={}
    )
    return builder.finish(results)


def _state_version(frame: int) -> bool:
    """Answer a frame that asks for the handler's version with the caller's own."""
    asked = call_frame.metadata(frame)
    if asked is None:
        return False
    major, minor = call_frame.api_version(frame)
    asked.api_version.major_version = major
    asked.api_version.minor_version = minor
    return True


def _python_handler(function: Callable[..., None]) -> Callable[[int], int | None]:
    def handler(frame: int) -> int | None:
        try:
            if _state_version(frame):
                return None
            with calling_back():
                operands, results, attributes = call_frame.read(frame)
                function(*operands, *results, **attributes)
        # Whatever leaves a C callback is printed and lost.
        except BaseException as error:
            made = call_frame.failure(frame, error)
            # Its frames lead to those of whoever runs the program, and keep their buffers.
            error.__traceback__ = None
            return made
        return None

    return handler
