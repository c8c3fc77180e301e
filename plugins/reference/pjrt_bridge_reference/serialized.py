"""Bytes that outlive a call: handed out with a deleter, and read back with a checksum.

A caller that serializes something gets three things: the bytes, the object behind them, and a
function that ends this object. What comes back may be anything at all, so it carries a magic word
and a checksum, and both are checked.
"""

from __future__ import annotations

import ctypes
import hashlib
import struct
from contextlib import suppress

from pjrt_bridge.abi.implementation_objects import Keep, Status
from pjrt_bridge_reference.caller_arguments import invalid
from pjrt_bridge_reference.slots import OBJECTS

_HASH = hashlib.sha256().digest_size


class Blob:
    """Bytes that a caller holds until it calls `DELETER`."""

    def __init__(self, data: bytes) -> None:
        self._keep = Keep()
        self.text = self._keep.text(data)


def _delete(pointer: int | None) -> None:
    # It returns nothing, so a wrong pointer cannot be reported.
    with suppress(Status):
        OBJECTS.remove(pointer, Blob)


_callback = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(_delete)

DELETER = ctypes.cast(_callback, ctypes.c_void_p).value
"""The C function that ends a blob."""


def pack(magic: bytes, *parts: bytes) -> bytes:
    """Join parts into bytes that `unpack` recognizes."""
    body = b"".join(struct.pack("<Q", len(part)) + part for part in parts)
    return magic + hashlib.sha256(body).digest() + body


def unpack(magic: bytes, data: bytes, what: str, *, parts: int) -> list[bytes]:
    """The parts that `pack` joined.

    Raises:
        Status: INVALID_ARGUMENT; other bytes, truncated or altered.
    """
    if not data.startswith(magic):
        raise invalid(f"{what}: starts with {data[: len(magic)]!r}, expected {magic!r}")
    body = data[len(magic) + _HASH :]
    if hashlib.sha256(body).digest() != data[len(magic) : len(magic) + _HASH]:
        raise invalid(f"{what}: truncated or altered")
    found, start = [], 0
    while start < len(body):
        (size,) = struct.unpack_from("<Q", body, start)
        found.append(body[start + 8 : start + 8 + size])
        start += 8 + size
    if len(found) != parts:
        raise invalid(f"{what}: has {len(found)} parts, expected {parts}")
    return found
