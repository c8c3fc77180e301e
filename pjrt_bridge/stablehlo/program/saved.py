"""A program that was saved: its artifact goes to a plugin unchanged.

Reading an artifact takes jaxlib, a second of start-up and another process that reads it first. None
of that is needed to run a program whose signature was kept with it.
"""

from __future__ import annotations

from functools import cached_property

from pjrt_bridge.errors import ProgramError
from pjrt_bridge.stablehlo import bindings
from pjrt_bridge.stablehlo.program.bytecode import PRODUCER, is_artifact
from pjrt_bridge.stablehlo.program.program import Program
from pjrt_bridge.stablehlo.types import Signature


class SavedProgram(Program):
    """A program known by its portable artifact and its signature; parsed only when needed.

    The caller guarantees that the bytes are those that were written, and that the signature is
    theirs.

    Args:
        artifact: a portable artifact.
        name: symbol name of the module.
        signature: of its `main`.

    Attributes:
        version: StableHLO version that the artifact was written for.

    Raises:
        ProgramError: no portable artifact.
    """

    def __init__(self, artifact: bytes, name: str, signature: Signature) -> None:
        self._artifact = artifact
        self._signature = signature
        self.name = name
        self.version = artifact_version(artifact)

    @cached_property
    def _parsed(self) -> Program:
        return Program.from_portable_artifact(self._artifact)

    def bytecode(self) -> bytes:
        """MLIR bytecode with source locations; tied to jaxlib's version."""
        return self._parsed.bytecode()

    def portable_artifact(self, version: str | None = None) -> bytes:
        """The artifact, written again where another version is asked for."""
        if version == self.version:
            return self._artifact
        return self._parsed.portable_artifact(version)

    def serialize_for(self, plugin_version: str | None) -> bytes:
        """The artifact as it is where the plugin is not older; else as `Program` does."""
        if plugin_version is None or _parts(plugin_version) >= _parts(self.version):
            return self._artifact
        return self._parsed.serialize_for(plugin_version)

    @cached_property
    def custom_calls(self) -> frozenset[str]:
        """Targets of its custom calls."""
        return self._parsed.custom_calls if b"custom_call" in self._artifact else frozenset()

    @property
    def may_have_composites(self) -> bool:
        """Whether something in it may be a composite."""
        return b"composite" in self._artifact

    def __repr__(self) -> str:
        return f"SavedProgram({self.name!r}, StableHLO {self.version}, {len(self._artifact)} bytes)"


def artifact_version(artifact: bytes) -> str:
    """The StableHLO version that a portable artifact was written for.

    Raises:
        ProgramError: no portable artifact.
    """
    if not is_artifact(artifact):
        raise ProgramError(f"no portable artifact of StableHLO: starts with {artifact[:24]!r}")
    start = artifact.index(PRODUCER) + len(PRODUCER)
    text = artifact[start : artifact.index(b"\0", start)].decode("ascii", "replace")
    _parts(text)
    return text


def _parts(version: str) -> tuple[int, ...]:
    return bindings.parse_version(version)
