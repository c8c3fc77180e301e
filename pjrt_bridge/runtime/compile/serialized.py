"""The container of a serialized executable: the plugin's bytes and what the plugin forgets.

PJRT does not tell an executable's parameter types, but the bridge has to check them before each
call. So the signature travels with the plugin's bytes: a magic word, the length of a JSON header,
the header, the plugin's bytes, all covered by a SHA-256.
"""

from __future__ import annotations

import hashlib
import json
import struct
from dataclasses import asdict, dataclass
from typing import Any

from pjrt_bridge.errors import ProgramError

_MAGIC = b"PJRTBRX1"
_HASH = hashlib.sha256().digest_size


@dataclass(frozen=True, slots=True)
class Header:
    """What the bridge has to know about a serialized executable.

    Attributes:
        name: of the program.
        platform: name and version of the platform that compiled it.
        portable: it may run on any device.
        signature: `Signature.to_json`.
        topology: what it was compiled for ahead of time; None where a client compiled it.
    """

    name: str
    platform: str
    portable: bool
    signature: dict[str, Any]
    topology: str | None = None


def pack(header: Header, blob: bytes) -> bytes:
    """Join a header and a plugin's bytes."""
    text = json.dumps(asdict(header)).encode()
    body = struct.pack("<Q", len(text)) + text + blob
    return _MAGIC + hashlib.sha256(body).digest() + body


def unpack(data: bytes | bytearray | memoryview) -> tuple[Header, bytes]:
    """Split what `pack` joined.

    Raises:
        ProgramError: other data, another format version, truncated or altered.
    """
    if not isinstance(data, (bytes, bytearray, memoryview)):
        raise ProgramError(f"no serialized executable: a {type(data).__name__}, expected bytes")
    data = bytes(data)
    if data[: len(_MAGIC)] != _MAGIC:
        raise ProgramError(
            f"no serialized executable of this bridge: starts with {data[:8]!r}, "
            f"expected {_MAGIC!r}"
        )
    body = data[len(_MAGIC) + _HASH :]
    if hashlib.sha256(body).digest() != data[len(_MAGIC) : len(_MAGIC) + _HASH]:
        raise ProgramError("the serialized executable is truncated or was altered")
    try:
        (length,) = struct.unpack_from("<Q", body)
        return Header(**json.loads(body[8 : 8 + length])), body[8 + length :]
    except (struct.error, TypeError, ValueError) as error:
        raise ProgramError(f"the serialized executable has another header: {error}") from error
