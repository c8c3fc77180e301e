"""Objects behind pointers, memory and errors of plugins that are written in Python."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from pjrt_bridge.abi.values import NamedValue, encode_named_values, int64s, pointers
from pjrt_bridge.errors import ErrorCode

_T = TypeVar("_T")


class Status(Exception):
    """An error that an implemented function raises to return a PJRT_Error.

    Attributes:
        code: of the error.
        message: what the caller reads.
    """

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class Objects:
    """Python objects behind the opaque pointers that a caller is given.

    A pointer is a number that is never used again, so one that was destroyed is known as such.
    """

    def __init__(self) -> None:
        self._held: dict[int, object] = {}
        # A finalizer that a garbage collection starts in here may remove objects.
        self._lock = threading.RLock()
        self._last = 0

    def add(self, value: object) -> int:
        """A pointer to an object, which is kept until `remove`."""
        with self._lock:
            self._last += 16
            self._held[self._last] = value
            return self._last

    def get(self, pointer: int | None, kind: type[_T]) -> _T:
        """The object behind a pointer.

        Raises:
            Status: INVALID_ARGUMENT; NULL, destroyed before, or an object of another kind.
        """
        found = self._held.get(pointer or 0)
        if not isinstance(found, kind):
            raise Status(ErrorCode.INVALID_ARGUMENT, self._complaint(pointer, found, kind))
        return found

    def remove(self, pointer: int | None, kind: type[_T]) -> _T:
        """The object of a pointer, which is not valid any more."""
        with self._lock:
            found = self.get(pointer, kind)
            del self._held[pointer or 0]
            return found

    def holds(self, pointer: int | None) -> bool:
        """Whether there is an object behind a pointer."""
        return pointer in self._held

    def count(self, kind: type[object] = object) -> int:
        """How many objects of a kind have not been removed."""
        with self._lock:
            return sum(isinstance(value, kind) for value in list(self._held.values()))

    def _complaint(self, pointer: int | None, found: object, kind: type[object]) -> str:
        if not pointer:
            return f"expected a {kind.__name__}, found NULL"
        if found is not None:
            return f"expected a {kind.__name__}, found a {type(found).__name__}"
        past = "was destroyed before" if pointer <= self._last else "never was one"
        return f"expected a {kind.__name__}, found {pointer:#x}, which {past}"


class Keep:
    """C memory for the outputs of functions; it lives as long as this object."""

    def __init__(self) -> None:
        self._held: list[object] = []

    def text(self, text: str | bytes) -> tuple[int, int]:
        """Address and size of a string."""
        encoded = text.encode() if isinstance(text, str) else text
        memory = ctypes.create_string_buffer(encoded)
        self._held.append(memory)
        return ctypes.addressof(memory), len(encoded)

    def texts(self, texts: Sequence[str]) -> tuple[int, int]:
        """Addresses of an array of strings and of an array of their sizes."""
        found = [self.text(text) for text in texts]
        return self.pointers([at for at, _ in found]), self.int64s([size for _, size in found])

    def int64s(self, values: Sequence[int]) -> int:
        """Address of an int64_t array; sizes are as wide."""
        return self._array(int64s(values))

    def pointers(self, values: Sequence[int | None]) -> int:
        """Address of an array of pointers."""
        return self._array(pointers(values))

    def int32s(self, values: Sequence[int]) -> int:
        """Address of an array of ints or enums."""
        return self._array((ctypes.c_int * len(values))(*values))

    def named_values(self, values: Mapping[str, NamedValue]) -> tuple[int, int]:
        """Address and length of a PJRT_NamedValue array."""
        array, keep = encode_named_values(values)
        self._held.append(keep)
        return ctypes.addressof(array), len(values)

    def struct(self, struct: ctypes.Structure) -> int:
        """Address of a struct."""
        self._held.append(struct)
        return ctypes.addressof(struct)

    def _array(self, array: Any) -> int:
        self._held.append(array)
        return ctypes.addressof(array)


class _Error:
    """The code and message behind a PJRT_Error of ours."""

    def __init__(self, code: int, message: str) -> None:
        self.code = code
        self.memory = Keep()
        self.text = self.memory.text(message)


class Errors:
    """The errors of an implementation that were handed out and not destroyed."""

    def __init__(self) -> None:
        self._objects = Objects()

    def new(self, code: int, message: str) -> int:
        """A PJRT_Error, which its receiver destroys."""
        return self._objects.add(_Error(code, message))

    def holds(self, error: int | None) -> bool:
        """Whether a pointer is one of these errors."""
        return self._objects.holds(error)

    def count(self) -> int:
        """How many have not been destroyed."""
        return self._objects.count()

    def destroy(self, args: Any) -> None:
        """`PJRT_Error_Destroy`."""
        if args.error:
            self._objects.remove(args.error, _Error)

    def take(self, error: int) -> Status:
        """What one of these errors says; it is destroyed."""
        found = self._objects.remove(error, _Error)
        code = found.code if found.code in ErrorCode._value2member_map_ else ErrorCode.UNKNOWN
        at, size = found.text
        return Status(ErrorCode(code), ctypes.string_at(at, size).decode())

    def message(self, args: Any) -> None:
        """`PJRT_Error_Message`."""
        args.message, args.message_size = self._objects.get(args.error, _Error).text

    def code(self, args: Any) -> None:
        """`PJRT_Error_GetCode`."""
        args.code = self._objects.get(args.error, _Error).code
