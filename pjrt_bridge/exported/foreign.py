"""Programs of saved models of unknown origin: looked at before a plugin reads them.

A plugin parses an artifact in this process, with a parser that bad bytes can make do anything. So
another process reads it first (`stablehlo.program.gate`), and tells its signature, which has to be
the manifest's: by that the arguments of each call are checked. It takes a second or two for the
first program that this user loads, and is remembered in the cache folder.
"""

from __future__ import annotations

import hashlib
import json
from functools import cached_property
from pathlib import Path

from pjrt_bridge import storage
from pjrt_bridge.errors import ProgramError, SavedModelError
from pjrt_bridge.runtime.compile.cache import Cache
from pjrt_bridge.stablehlo.program import gate
from pjrt_bridge.stablehlo.program.saved import SavedProgram
from pjrt_bridge.stablehlo.types import Signature
from pjrt_bridge.versions import version

_LIMIT = 10_000_000


class ForeignProgram(SavedProgram):
    """A saved program whose artifact is checked when it is first needed.

    Args:
        artifact: a portable artifact.
        name: symbol name of the module.
        signature: that its `main` is said to have.
        path: of the artifact's file, for messages.

    Raises:
        ProgramError: no portable artifact.
    """

    def __init__(self, artifact: bytes, name: str, signature: Signature, path: Path) -> None:
        super().__init__(artifact, name, signature)
        self._path = path

    def portable_artifact(self, version: str | None = None) -> bytes:
        """The artifact, written again where another version is asked for.

        Raises:
            SavedModelError: it is damaged, or has another signature than the manifest says.
        """
        _ = self._checked
        return super().portable_artifact(version)

    def serialize_for(self, plugin_version: str | None) -> bytes:
        """The artifact as it is where the plugin is not older; else as `Program` does.

        Raises:
            SavedModelError: it is damaged, or has another signature than the manifest says.
        """
        _ = self._checked
        return super().serialize_for(plugin_version)

    @cached_property
    def _checked(self) -> bool:
        try:
            told = _signature(self._artifact)
            found = None if told is None else Signature.from_json(json.loads(told))
        except ValueError as error:
            raise SavedModelError(f"{self._path}: {error}") from error
        if found is not None and found != self._signature:
            raise SavedModelError(
                f"{self._path}: signature: found {found}, needed {self._signature}, which the "
                "manifest states"
            )
        return True


def _signature(artifact: bytes) -> str | None:
    """The signature of an artifact as JSON; None where nobody can look at it.

    Raises:
        ProgramError: it cannot be read, or has no signature.
    """
    folder = storage.cache_folder("artifacts")
    kept = None if folder is None else Cache(folder, _LIMIT)
    key = hashlib.sha256(version("jaxlib").encode() + b"\0" + artifact).hexdigest()
    if kept is not None and (known := kept.get(key)) is not None:
        return known.decode()
    found = gate.check_bytes(artifact, "portable artifact")
    if found == "":
        raise ProgramError("portable artifact: it cannot be read, or has no static signature")
    if found is not None and kept is not None:
        kept.put(key, found.encode())
    return found
