"""A PJRT_Api made of Python functions, for tests of what the bridge does with odd tables."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from typing import Any

from pjrt_bridge.abi.api import REQUIRED
from pjrt_bridge.abi.functions import FIRST_OFFSET, FUNCTIONS, SLOT
from pjrt_bridge.abi.structs import STRUCTS

_CALLBACK = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)


class FakeTable:
    """A table in memory, with required functions that count their calls and return OK.

    Attributes:
        calls: names of the functions that were called, in order.
        address: of the PJRT_Api.
    """

    def __init__(
        self,
        functions: Mapping[str, Callable[[Any], int | None]] | None = None,
        *,
        version: tuple[int, int] = (0, 81),
        slots: int = 118,
        struct_size: int | None = None,
        without: tuple[str, ...] = (),
        pointers: Mapping[str, int] | None = None,
    ) -> None:
        self.calls: list[str] = []
        size = FIRST_OFFSET + 8 * slots
        self._memory = ctypes.create_string_buffer(size + 4096)
        self.address = ctypes.addressof(self._memory)
        ctypes.c_size_t.from_address(self.address).value = (
            size if struct_size is None else struct_size
        )
        header = STRUCTS["PJRT_Api_Version"].ctype.from_address(self.address + 16)
        header.struct_size = 24
        header.major_version, header.minor_version = version
        # What follows the table is garbage, as it is behind a real one.
        ctypes.memset(self.address + size, 0x42, 4096)
        self._callbacks = []
        given = dict.fromkeys(REQUIRED, lambda args: None) | dict(functions or {})
        for name, function in given.items():
            if name not in without and SLOT[name] < slots:
                callback = _CALLBACK(self._recorded(name, function))
                self._callbacks.append(callback)
                self._set(name, ctypes.cast(callback, ctypes.c_void_p).value or 0)
        for name, pointer in (pointers or {}).items():
            self._set(name, pointer)

    def _set(self, name: str, pointer: int) -> None:
        slot = self.address + FIRST_OFFSET + 8 * SLOT[name]
        ctypes.c_void_p.from_address(slot).value = pointer

    def _recorded(self, name: str, function: Callable[[Any], int | None]) -> Callable[[int], Any]:
        struct = FUNCTIONS[name]
        assert struct is not None

        def call(address: int) -> int | None:
            self.calls.append(name)
            return function(struct.ctype.from_address(address))

        return call
