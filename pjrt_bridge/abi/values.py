"""Conversions of C values: strings, arrays, PJRT_NamedValue lists."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from pjrt_bridge.abi.structs import STRUCTS
from pjrt_bridge.errors import OptionError

NamedValue = str | int | float | bool | Sequence[int]
"""What a PJRT_NamedValue can hold: string, int64, float, bool or a list of int64."""

_STRUCT = STRUCTS["PJRT_NamedValue"]
_STRING, _INT64, _INT64_LIST, _FLOAT, _BOOL = range(5)
_DELETER = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_VALUE_OFFSET = _STRUCT.offset("value")


def text(address: int | None, size: int) -> str:
    """A string of the plugin: `size` bytes at `address`, not NUL-terminated."""
    return ctypes.string_at(address, size).decode(errors="replace") if address else ""


def utf8(text: str, where: str) -> bytes:
    """The bytes of a text for a plugin.

    Raises:
        OptionError: lone surrogates, which UTF-8 cannot express; `where` names the place.
    """
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise OptionError(f"{where}: found {text!r}, which is no Unicode text") from error


@cache
def _array(element: Any, length: int) -> Any:
    return element * length


def free(deleter: int, owner: int | None) -> None:
    """Call a `void (*)(void*)` of the plugin, which frees what backs an output."""
    _DELETER(deleter)(owner)


def int64s(values: Sequence[int]) -> Any:
    """An int64_t array."""
    return _array(ctypes.c_int64, len(values))(*values)


def read_int64s(address: int | None, count: int) -> tuple[int, ...]:
    """`count` int64_t at `address`."""
    return tuple((ctypes.c_int64 * count).from_address(address)) if address and count else ()


def pointers(values: Sequence[int | None]) -> Any:
    """An array of pointers."""
    return _array(ctypes.c_void_p, len(values))(*values)


def read_pointers(address: int | None, count: int) -> tuple[int, ...]:
    """`count` non-NULL pointers at `address`."""
    return tuple((ctypes.c_void_p * count).from_address(address)) if address and count else ()


def encode_named_values(values: Mapping[str, NamedValue]) -> tuple[Any, list[object]]:
    """A PJRT_NamedValue array, and what must stay alive as long as it is used.

    Raises:
        OptionError: a value of a type that PJRT_NamedValue cannot hold, or an int beyond 64 bits.
    """
    array = (_STRUCT.ctype * max(len(values), 1))()
    keep: list[object] = [array]
    for item, (name, value) in zip(array, values.items(), strict=False):
        encoded = utf8(name, "name of an option")
        keep.append(encoded)
        item.struct_size = _STRUCT.size
        item.name = ctypes.cast(ctypes.c_char_p(encoded), ctypes.c_void_p).value
        item.name_size = len(encoded)
        _encode(item, name, value, keep)
    return array, keep


def _encode(item: Any, name: str, value: NamedValue, keep: list[object]) -> None:
    slot = ctypes.addressof(item) + _VALUE_OFFSET
    item.value_size = 1
    # bool comes before int: it is a subclass of int.
    if isinstance(value, bool):
        item.type = _BOOL
        ctypes.c_bool.from_address(slot).value = value
    elif isinstance(value, int):
        if not _fits(value):
            raise OptionError(f"option {name!r}: {value} does not fit in 64 bits")
        item.type = _INT64
        item.value = value
    elif isinstance(value, float):
        item.type = _FLOAT
        ctypes.c_float.from_address(slot).value = value
    elif isinstance(value, str):
        encoded = utf8(value, f"option {name!r}")
        keep.append(encoded)
        item.type = _STRING
        item.value = ctypes.cast(ctypes.c_char_p(encoded), ctypes.c_void_p).value or 0
        item.value_size = len(encoded)
    elif isinstance(value, (list, tuple)) and all(
        type(element) is int and _fits(element) for element in value
    ):
        array = int64s(value)
        keep.append(array)
        item.type = _INT64_LIST
        item.value = ctypes.addressof(array)
        item.value_size = len(value)
    else:
        raise OptionError(
            f"option {name!r}: found {value!r} of type {type(value).__name__}, "
            "expected str, int, float, bool or a list of int (64 bits)"
        )


def _fits(value: int) -> bool:
    return -(1 << 63) <= value < 1 << 63


def decode_named_values(address: int | None, count: int) -> dict[str, NamedValue]:
    """Read `count` PJRT_NamedValue at `address`, in order; unknown value types are left out."""
    if not address:
        return {}
    found: dict[str, NamedValue] = {}
    for item in (_STRUCT.ctype * count).from_address(address):
        slot = ctypes.addressof(item) + _VALUE_OFFSET
        name = text(item.name, item.name_size)
        if item.type == _STRING:
            found[name] = text(ctypes.c_void_p.from_address(slot).value, item.value_size)
        elif item.type == _INT64:
            found[name] = int(item.value)
        elif item.type == _INT64_LIST:
            found[name] = read_int64s(item.value, item.value_size)
        elif item.type == _FLOAT:
            found[name] = ctypes.c_float.from_address(slot).value
        elif item.type == _BOOL:
            found[name] = ctypes.c_bool.from_address(slot).value
    return found
