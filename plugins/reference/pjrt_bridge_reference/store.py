"""The key-value store of the caller, behind the functions that PJRT_Client_Create gets."""

from __future__ import annotations

import ctypes
from typing import Any

from pjrt_bridge.abi.implementation_objects import Status
from pjrt_bridge.abi.structs import STRUCTS
from pjrt_bridge.errors import ErrorCode
from pjrt_bridge_reference.caller_arguments import invalid
from pjrt_bridge_reference.slots import ERRORS

_FUNCTION = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)
_DELETER = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_MOST_MILLISECONDS = (1 << 31) - 1


def _make_error(code: int, message: int | None, size: int) -> int:
    text = ctypes.string_at(message, size) if message and size else b""
    return ERRORS.new(code, text.decode(errors="replace"))


# What callers make their errors with; as long as the process, like every error of the plugin.
_CALLBACK_ERROR = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t)(
    _make_error
)
_ERROR_CELL = ctypes.c_void_p(ctypes.cast(_CALLBACK_ERROR, ctypes.c_void_p).value)


class Store:
    """Values by key that all processes see; every method may be called from any thread.

    Args:
        args: of PJRT_Client_Create.

    Raises:
        Status: INVALID_ARGUMENT; a function is missing.
    """

    def __init__(self, args: Any) -> None:
        self._functions = {}
        self._user_args = {}
        for name in ("get", "put", "try_get"):
            pointer = getattr(args, f"kv_{name}_callback")
            if not pointer:
                raise invalid(f"kv_{name}_callback is NULL; num_nodes above 1 needs it")
            self._functions[name] = _FUNCTION(pointer)
            self._user_args[name] = getattr(args, f"kv_{name}_user_arg")

    def get(self, key: str, timeout: float) -> bytes | None:
        """The value of a key; None if it is not there after some seconds.

        Raises:
            Status: what the caller's function returned.
        """
        milliseconds = min(max(int(timeout * 1000), 1), _MOST_MILLISECONDS)
        return self._value("get", key, ErrorCode.DEADLINE_EXCEEDED, timeout_in_ms=milliseconds)

    def try_get(self, key: str) -> bytes | None:
        """The value of a key, or None.

        Raises:
            Status: what the caller's function returned.
        """
        return self._value("try_get", key, ErrorCode.NOT_FOUND)

    def put(self, key: str, value: bytes) -> None:
        """Set the value of a key.

        Raises:
            Status: what the caller's function returned.
        """
        memory = ctypes.create_string_buffer(value, len(value) or 1)
        self._call("put", key, value=ctypes.addressof(memory), value_size=len(value))

    def _value(self, name: str, key: str, absent: ErrorCode, **fields: int) -> bytes | None:
        try:
            args = self._call(name, key, **fields)
        except Status as error:
            if error.code == absent:
                return None
            raise
        try:
            return ctypes.string_at(args.value, args.value_size) if args.value_size else b""
        finally:
            if args.value_deleter_callback:
                _DELETER(args.value_deleter_callback)(args.value)

    def _call(self, name: str, key: str, **fields: int) -> Any:
        encoded = key.encode()
        memory = ctypes.create_string_buffer(encoded, len(encoded))
        camel = {"get": "Get", "try_get": "TryGet", "put": "Put"}[name]
        args = STRUCTS[f"PJRT_KeyValue{camel}Callback_Args"].new(
            key=ctypes.addressof(memory),
            key_size=len(encoded),
            callback_error=ctypes.addressof(_ERROR_CELL),
            user_arg=self._user_args[name],
            **fields,
        )
        error = self._functions[name](ctypes.addressof(args))
        if error:
            raise ERRORS.take(error)
        return args
