"""Implementation: a PJRT_Api whose function pointers are Python functions.

What `Api` calls, `Implementation` offers: a table in memory, made from the same declarations. A
function takes the args struct of its slot, fills the outputs, and raises `Status` to return an
error. With a `base`, a table of another plugin, the slots that are not given are the base's own, so
a few functions of a real plugin can be replaced.

Source: pjrt_c_api.h; the rules for struct sizes are in its section on ABI compatibility.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pjrt_bridge.abi.api import VOID_FUNCTIONS
from pjrt_bridge.abi.extension_structs import ExtensionTable, FunctionTable
from pjrt_bridge.abi.functions import FIRST_OFFSET, FUNCTIONS, SLOT, SLOTS_0_81, offset_of
from pjrt_bridge.abi.implementation_objects import Errors, Status
from pjrt_bridge.abi.structs import STRUCTS, Struct
from pjrt_bridge.errors import ErrorCode

TableFunction = Callable[[Any], int | None]
"""Takes the args struct of a slot and fills its outputs; may return an error of the base's."""

_RETURNS_ERROR = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)
_RETURNS_NOTHING = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_HEADER_SIZE = 16
"""Bytes of an args struct that every caller has: struct_size and extension_start."""


class Implementation:
    """A PJRT_Api in memory.

    Args:
        functions: by name without `PJRT_`. `Error_Destroy`, `Error_Message` and `Error_GetCode` are
            there already.
        version: (major, minor) that the table states.
        slots: how many functions the table has; a later one does not exist for callers.
        base: address of a table whose functions stand where none is given.
        without: functions whose slots are NULL.
        extension_start: address of the first extension; by default that of the base.
        errors: where errors are kept, for functions that hand over some otherwise than by a return.

    Attributes:
        address: of the table.
        struct_size: bytes of it.
    """

    def __init__(
        self,
        functions: Mapping[str, TableFunction],
        *,
        version: tuple[int, int] = (0, 81),
        slots: int = SLOTS_0_81,
        base: int | None = None,
        without: Sequence[str] = (),
        extension_start: int | None = None,
        errors: Errors | None = None,
    ) -> None:
        self._errors = errors or Errors()
        self._callbacks: list[object] = []
        self._base = base
        self.struct_size = FIRST_OFFSET + 8 * slots
        self._memory = ctypes.create_string_buffer(self.struct_size + 8)
        start = ctypes.addressof(self._memory)
        self.address = start + -start % 8
        if base:
            size = min(self.struct_size, ctypes.c_size_t.from_address(base).value)
            ctypes.memmove(self.address, base, size)
        ctypes.c_size_t.from_address(self.address).value = self.struct_size
        if extension_start is not None or not base:
            ctypes.c_void_p.from_address(self.address + 8).value = extension_start
        stated = STRUCTS["PJRT_Api_Version"]
        header = stated.ctype.from_address(self.address + 16)
        header.struct_size = stated.size
        header.major_version, header.minor_version = version
        about_errors: dict[str, TableFunction] = {
            "Error_Destroy": self._destroy_error,
            "Error_Message": self._error_message,
            "Error_GetCode": self._error_code,
        }
        for name, function in (about_errors | dict(functions)).items():
            if SLOT[name] < slots:
                self._set(name, self._pointer(name, function))
        for name in without:
            if SLOT[name] < slots:
                self._set(name, 0)

    @property
    def errors_alive(self) -> int:
        """Errors that were returned and not destroyed."""
        return self._errors.count()

    def function(self, args: Struct, function: TableFunction) -> int:
        """A C function pointer for a function of an extension's table."""
        return self._callback(args, function, _RETURNS_ERROR)

    def function_table(
        self,
        table: FunctionTable,
        functions: Mapping[str, TableFunction],
        *,
        size: int | None = None,
        **fields: int,
    ) -> int:
        """A C struct of function pointers, which lives as long as this object.

        Args:
            table: its declaration.
            functions: by the names of the declaration; the slots of others are NULL.
            size: what `struct_size` states: an older version of the struct ends earlier.
            fields: values of fields that are no functions.

        Returns:
            Its address.
        """
        struct = table.struct.new(**fields)
        if size is not None:
            struct.struct_size = size
        for name, function in functions.items():
            args = table.functions[name]
            if args is None:
                raise KeyError(f"the args of {table.name}.{name} are not declared")
            prototype = _RETURNS_NOTHING if name in table.void else _RETURNS_ERROR
            setattr(struct, name, self._callback(args, function, prototype))
        self._callbacks.append(struct)
        return ctypes.addressof(struct)

    def add_extension(
        self,
        table: ExtensionTable,
        functions: Mapping[str, TableFunction],
        *,
        size: int | None = None,
        **fields: int,
    ) -> int:
        """Put an extension in front of the chain; see `function_table`."""
        start = ctypes.c_void_p.from_address(self.address + 8)
        fields = {"type": table.type, "next": start.value or 0} | fields
        start.value = self.function_table(table, functions, size=size, **fields)
        return start.value or 0

    def error(self, code: int, message: str) -> int:
        """A PJRT_Error, for where one is handed over otherwise than by a return."""
        return self._errors.new(code, message)

    def call_base(self, name: str, args: Any) -> int | None:
        """Call the base's own function on an args struct; the error that it returns, or None."""
        if self._base is None:
            raise ValueError(f"there is no base whose PJRT_{name} could be called")
        pointer = ctypes.c_void_p.from_address(self._base + offset_of(name)).value
        if pointer is None:
            raise Status(ErrorCode.UNIMPLEMENTED, f"the base has no PJRT_{name}")
        found: int | None = _prototype(name)(pointer)(ctypes.addressof(args))
        return found

    def _set(self, name: str, pointer: int) -> None:
        ctypes.c_void_p.from_address(self.address + offset_of(name)).value = pointer

    def _pointer(self, name: str, function: TableFunction) -> int:
        struct = FUNCTIONS[name]
        if struct is None:
            raise KeyError(f"the args of PJRT_{name} are not declared")
        return self._callback(struct, function, _prototype(name))

    def _callback(self, struct: Struct, function: TableFunction, prototype: Any) -> int:
        def call(address: int) -> int | None:
            # Nothing may be raised into C: ctypes would print it and return 0, which means success.
            try:
                return function(read(struct, address))
            except Status as status:
                code, message = status.code, status.message
            except MemoryError as error:
                code, message = ErrorCode.RESOURCE_EXHAUSTED, str(error) or "out of memory"
            except BaseException as error:
                code, message = ErrorCode.INTERNAL, f"{type(error).__name__}: {error}"
            # What a void function returns would never be destroyed.
            return self.error(code, message) if prototype is _RETURNS_ERROR else None

        callback = prototype(call)
        self._callbacks.append(callback)
        return ctypes.cast(callback, ctypes.c_void_p).value or 0

    # -- errors, ours and those of the base --------------------------------------------------------

    def _destroy_error(self, args: Any) -> int | None:
        if self._of_base(args.error):
            return self.call_base("Error_Destroy", args)
        self._errors.destroy(args)
        return None

    def _error_message(self, args: Any) -> int | None:
        if self._of_base(args.error):
            return self.call_base("Error_Message", args)
        self._errors.message(args)
        return None

    def _error_code(self, args: Any) -> int | None:
        if self._of_base(args.error):
            return self.call_base("Error_GetCode", args)
        self._errors.code(args)
        return None

    def _of_base(self, error: int | None) -> bool:
        return self._base is not None and not self._errors.holds(error)


def _prototype(function: str) -> Any:
    return _RETURNS_NOTHING if function in VOID_FUNCTIONS else _RETURNS_ERROR


def read(struct: Struct, address: int | None) -> Any:
    """The struct at an address that a caller gave: the args of a function, or what they point to.

    Raises:
        Status: INVALID_ARGUMENT; NULL, or a struct that is smaller than the function needs.
    """
    if not address:
        raise Status(ErrorCode.INVALID_ARGUMENT, f"{struct.name}: found NULL")
    has_size = struct.fields and struct.fields[0].name == "struct_size"
    size = ctypes.c_size_t.from_address(address).value
    if has_size and not _HEADER_SIZE <= struct.size <= size:
        raise Status(
            ErrorCode.INVALID_ARGUMENT,
            f"{struct.name}: struct_size is {size}, expected at least {struct.size}",
        )
    return struct.ctype.from_address(address)
