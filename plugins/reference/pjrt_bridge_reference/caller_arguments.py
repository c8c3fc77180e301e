"""Checks of what callers give: pointers, counts, texts and structs.

A plugin lives in its caller's process, so a NULL that it follows ends both. A pointer that is not
NULL has to be trusted.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Any

from pjrt_bridge import dtypes
from pjrt_bridge.abi.implement import read
from pjrt_bridge.abi.implementation_objects import Status
from pjrt_bridge.abi.structs import STRUCTS
from pjrt_bridge.abi.values import NamedValue, decode_named_values
from pjrt_bridge.dtypes import DType
from pjrt_bridge.errors import ErrorCode, UnsupportedDtype

_MOST = 1 << 20
"""Elements of a list that is no list but garbage."""

_LARGEST_RANK = 64
"""Dimensions that a NumPy array can have."""

_LARGEST_ARRAY = 1 << 46


def invalid(message: str) -> Status:
    """The error of a caller's mistake."""
    return Status(ErrorCode.INVALID_ARGUMENT, message)


def unimplemented(message: str) -> Status:
    """The error of what this plugin cannot do."""
    return Status(ErrorCode.UNIMPLEMENTED, message)


def address(value: int | None, what: str) -> int:
    """A pointer that must not be NULL."""
    if not value:
        raise invalid(f"{what} is NULL")
    return value


def _count(count: int, what: str) -> int:
    if not 0 <= count <= _MOST:
        raise invalid(f"{what}: found {count} elements")
    return count


def int64s(start: int | None, count: int, what: str) -> tuple[int, ...]:
    """An array of int64_t, which may be NULL only where it is empty."""
    if not _count(count, what):
        return ()
    return tuple((ctypes.c_int64 * count).from_address(address(start, what)))


def pointers(start: int | None, count: int, what: str) -> tuple[int | None, ...]:
    """An array of pointers, NULLs among them."""
    if not _count(count, what):
        return ()
    return tuple((ctypes.c_void_p * count).from_address(address(start, what)))


def raw(start: int | None, size: int, what: str) -> bytes:
    """Bytes of a given number."""
    if not size:
        return b""
    if size < 0 or size > _LARGEST_ARRAY:
        raise invalid(f"{what}: found {size} bytes")
    return ctypes.string_at(address(start, what), size)


def text(start: int | None, size: int, what: str) -> str:
    """A string, which need not end with a NUL."""
    try:
        return raw(start, size, what).decode()
    except UnicodeDecodeError as error:
        raise invalid(f"{what} is no UTF-8: {error}") from None


def struct(name: str, start: int | None) -> Any:
    """A struct that an args struct points to, if it is as large as it was in API 0.81."""
    return read(STRUCTS[name], start)


def options(
    start: int | None, count: int, declared: Mapping[str, type], what: str
) -> dict[str, NamedValue]:
    """Create options: each must be declared, and of the declared type.

    Plugins that accept unknown names in silence make their users guess why nothing changes.
    """
    if _count(count, what):
        address(start, what)
    found = decode_named_values(start, count)
    for name, value in found.items():
        if name not in declared:
            raise invalid(f"{what}: unknown option {name!r}; known: {', '.join(declared)}")
        if type(value) is not declared[name]:
            raise invalid(
                f"{what}: option {name!r} is {value!r}, expected {declared[name].__name__}"
            )
    return found


def dtype(code: int) -> DType:
    """The element type of a PJRT_Buffer_Type."""
    try:
        return dtypes.from_code(code)
    except UnsupportedDtype as error:
        raise invalid(str(error)) from None


def shape(start: int | None, rank: int, element: DType) -> tuple[int, ...]:
    """The dimensions of an array that could exist."""
    if rank > _LARGEST_RANK:
        raise invalid(f"dims: found {rank} dimensions, the most are {_LARGEST_RANK}")
    found = int64s(start, rank, "dims")
    size = element.itemsize
    for dimension in found:
        if dimension < 0:
            raise invalid(f"dims: found {found}, a negative dimension")
        # Python's integers do not overflow; those of C plugins do.
        size *= max(dimension, 1)
    if size > _LARGEST_ARRAY:
        raise Status(
            ErrorCode.RESOURCE_EXHAUSTED, f"dims: an array of {found} elements has {size} bytes"
        )
    return found
