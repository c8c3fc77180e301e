"""The wire format of protocol buffers: what a few small messages of PJRT and its tools need.

Source: the encoding guide of protobuf.dev. Groups are not supported; they are obsolete.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5


def base128(value: int) -> bytes:
    """An integer of 64 bits, negative ones in two's complement."""
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def key(number: int, wire_type: int) -> bytes:
    """The key that precedes a field: its number and wire type."""
    return base128(number << 3 | wire_type)


def varint(number: int, value: int) -> bytes:
    """An integer, enum or bool field."""
    return key(number, VARINT) + base128(value)


def double(number: int, value: float) -> bytes:
    """A double field."""
    return key(number, FIXED64) + struct.pack("<d", value)


def message(number: int, content: bytes) -> bytes:
    """A field that is a message, bytes, or packed numbers."""
    return key(number, BYTES) + base128(len(content)) + content


def text(number: int, value: str) -> bytes:
    """A string field."""
    return message(number, value.encode())


def fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """The fields of a message in order: number, and an unsigned integer, or the bytes.

    Fixed-width fields come as bytes.

    Raises:
        ValueError: the data end within a field, or are no message.
    """
    at = 0
    while at < len(data):
        head, at = _base128(data, at)
        number, wire_type = head >> 3, head & 7
        if number == 0:
            raise ValueError(f"byte {at}: no field has number 0")
        if wire_type == VARINT:
            value, at = _base128(data, at)
            yield number, value
            continue
        if wire_type == BYTES:
            size, at = _base128(data, at)
        elif wire_type in (FIXED64, FIXED32):
            size = 8 if wire_type == FIXED64 else 4
        else:
            raise ValueError(f"byte {at}: wire type {wire_type} of field {number} is not known")
        if at + size > len(data):
            raise ValueError(f"byte {at}: field {number} needs {size} bytes, {len(data) - at} left")
        yield number, data[at : at + size]
        at += size


def messages(data: bytes, number: int) -> Iterator[bytes]:
    """The contents of a message's fields of one number, those that are bytes.

    Raises:
        ValueError: see `fields`.
    """
    for found, value in fields(data):
        if found == number and isinstance(value, bytes):
            yield value


def signed(value: int | bytes) -> int:
    """An int64 field's value."""
    assert isinstance(value, int)
    return value - (1 << 64) if value >> 63 else value


def _base128(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            raise ValueError(f"byte {at}: the data end within a number")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if not byte & 0x80:
            return value & ((1 << 64) - 1), at
    raise ValueError(f"byte {at}: a number of more than 64 bits")
