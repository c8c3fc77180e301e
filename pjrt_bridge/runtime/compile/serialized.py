"""The container of a serialized executable: the plugin's bytes, and what they do not hold.

PJRT does not tell an executable's parameter types, but the bridge has to check them before each
call. So the signature travels with the plugin's bytes: a magic word, the length of a JSON header,
the header, the plugin's bytes, all covered by a SHA-256.
"""

from __future__ import annotations

import hashlib
import json
import struct
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pjrt_bridge.errors import ProgramError
from pjrt_bridge.runtime.compile.identity import library_hash, missing_features

MAGIC = b"PJRTBRX1"
"""First bytes of a serialized executable."""
_HASH = hashlib.sha256().digest_size


@dataclass(frozen=True, slots=True)
class Header:
    """The header of a serialized executable: what the bridge has to know to load it.

    Attributes:
        name: of the program.
        platform: name and version of the platform that compiled it.
        portable: it may run on any device.
        signature: `Signature.to_json`.
        topology: what it was compiled for ahead of time; None where a client compiled it.
        library: hash of the plugin's library; None where it was compiled ahead of time, or where
            builds of the plugin cannot be told apart.
        processor: of the machine, where the program runs on it (`identity.processor`).
    """

    name: str
    platform: str
    portable: bool
    signature: dict[str, Any]
    topology: str | None = None
    library: str | None = None
    processor: str | None = None

    def __post_init__(self) -> None:
        texts = (self.name, self.platform)
        others = (self.topology, self.library, self.processor)
        if not all(isinstance(text, str) for text in texts) or not all(
            text is None or isinstance(text, str) for text in others
        ):
            raise TypeError("found a field that is no text")
        if type(self.portable) is not bool or not isinstance(self.signature, dict):
            raise TypeError("found no truth value for portable, or no object for signature")

    def check(self, library: Path | None) -> None:
        """Check that the program runs here, with this build of the plugin.

        Args:
            library: of the plugin.

        Raises:
            ProgramError: it was made by another build, or for a processor that can do more.
        """
        what = f"the serialized executable {self.name!r} was made"
        if self.processor is not None and (missing := missing_features(self.processor)):
            raise ProgramError(
                f"{what} for a processor with {', '.join(missing)}, which this one lacks: it was "
                "compiled on another machine, compile it again here"
            )
        if self.library is not None and library is not None:
            found = library_hash(library)
            if found != self.library:
                raise ProgramError(
                    f"{what} by another build of the plugin: found a library with the hash "
                    f"{self.library[:16]}, this one has {found[:16]}; compile it again here"
                )


def pack(header: Header, blob: bytes) -> bytes:
    """Join a header and a plugin's bytes."""
    text = json.dumps(asdict(header)).encode()
    body = struct.pack("<Q", len(text)) + text + blob
    return MAGIC + hashlib.sha256(body).digest() + body


def unpack(data: bytes | bytearray | memoryview) -> tuple[Header, bytes]:
    """Split what `pack` joined.

    Raises:
        ProgramError: other data, another format version, truncated or altered.
    """
    if not isinstance(data, (bytes, bytearray, memoryview)):
        raise ProgramError(f"no serialized executable: a {type(data).__name__}, expected bytes")
    data = bytes(data)
    if data[: len(MAGIC)] != MAGIC:
        raise ProgramError(
            f"no serialized executable of this bridge: starts with {data[:8]!r}, expected {MAGIC!r}"
        )
    body = data[len(MAGIC) + _HASH :]
    if hashlib.sha256(body).digest() != data[len(MAGIC) : len(MAGIC) + _HASH]:
        raise ProgramError("the serialized executable is truncated or was altered")
    try:
        (length,) = struct.unpack_from("<Q", body)
        return Header(**json.loads(body[8 : 8 + length])), body[8 + length :]
    except (struct.error, TypeError, ValueError, RecursionError) as error:
        raise ProgramError(f"the serialized executable has another header: {error}") from error
