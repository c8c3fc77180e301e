"""A plugin's table with Python functions in the place of some of its own."""

from __future__ import annotations

import ctypes
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from pjrt_bridge.abi.api import VOID_FUNCTIONS, Api
from pjrt_bridge.abi.functions import FIRST_OFFSET, FUNCTIONS, SLOT, offset_of
from pjrt_bridge.abi.implement import Implementation
from pjrt_bridge.abi.implementation_objects import Status
from pjrt_bridge.errors import ErrorCode
from pjrt_bridge.runtime import Plugin

_RETURNS_ERROR = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)
_RETURNS_NOTHING = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_OF_ERRORS = ("Error_Destroy", "Error_Message", "Error_GetCode")


class Replaced:
    """A table over that of a plugin.

    Args:
        base: address of the plugin's own.
        functions: by name without `PJRT_`; each takes this object and the args struct, whose size
            nobody has looked at, and may raise `Status` or return an error of the plugin's.
        slots: how many functions the table has; None: as many as the plugin's.
        version: (major, minor) that it states; None: the plugin's.
        extension_start: address of the first extension; None: the plugin's.

    Attributes:
        address: of the table.
        calls: how often each of the functions was called.
    """

    def __init__(
        self,
        base: int,
        functions: Mapping[str, Replacement],
        *,
        slots: int | None = None,
        version: tuple[int, int] | None = None,
        extension_start: int | None = None,
    ) -> None:
        real = Api(base, plugin="real")
        self.calls: Counter[str] = Counter()
        self._callbacks: list[object] = []
        # Errors of Python's functions are told from those of the plugin here.
        self._errors = Implementation({}, base=base, slots=_slots(real), version=real.version)
        self._table = Implementation(
            {},
            base=self._errors.address,
            slots=_slots(real) if slots is None else slots,
            version=real.version if version is None else version,
            extension_start=extension_start,
        )
        self.address = self._table.address
        size = Api(self.address, plugin="replaced", keepalive=self._table).struct_size
        for name, function in functions.items():
            if offset_of(name) < size:
                self.put(name, self._callback(name, function))

    def plugin(self, name: str) -> Plugin:
        """A plugin of this table."""
        return Plugin.from_address(self.address, name=name, keepalive=self)

    def real(self, function: str, args: Any) -> int | None:
        """Call the plugin's own function; the error that it returns, or None."""
        return self._table.call_base(function, args)

    def error(self, code: int, message: str) -> int:
        """A PJRT_Error of Python's."""
        return self._errors.error(code, message)

    def pointer(self, function: str) -> int:
        """What is in a slot."""
        return self._slot(function).value or 0

    def put(self, function: str, pointer: int | None) -> int | None:
        """Set a slot; what was there before."""
        slot = self._slot(function)
        before = slot.value
        slot.value = pointer
        return before

    def _slot(self, function: str) -> ctypes.c_void_p:
        return ctypes.c_void_p.from_address(self.address + offset_of(function))

    def _callback(self, name: str, function: Replacement) -> int:
        struct = FUNCTIONS[name]
        assert struct is not None
        is_void = name in VOID_FUNCTIONS

        def call(address: int) -> int | None:
            self.calls[name] += 1
            # Nothing may be raised into C.
            try:
                return function(self, struct.ctype.from_address(address))
            except Status as status:
                code, message = status.code, status.message
            except BaseException as error:
                code, message = ErrorCode.INTERNAL, f"{type(error).__name__}: {error}"
            return None if is_void else self.error(code, message)

        callback = (_RETURNS_NOTHING if is_void else _RETURNS_ERROR)(call)
        self._callbacks.append(callback)
        return ctypes.cast(callback, ctypes.c_void_p).value or 0


Replacement = Callable[[Replaced, Any], int | None]


def _slots(api: Api) -> int:
    return (api.struct_size - FIRST_OFFSET) // 8


def through_python(base: int) -> Replaced:
    """A table of Python functions that do what the plugin's do; those of errors are its own."""

    def passing(name: str) -> Replacement:
        return lambda table, args: table.real(name, args)

    slots = _slots(Api(base, plugin="real"))
    names = [
        name
        for name, struct in FUNCTIONS.items()
        if struct is not None and SLOT[name] < slots and name not in _OF_ERRORS
    ]
    return Replaced(base, {name: passing(name) for name in names})
