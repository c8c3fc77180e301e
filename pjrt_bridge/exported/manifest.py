"""The manifest of a saved model: what is in the folder, by whom, and a hash of each file.

`manifest.json` is one JSON object. Its field `sha256` is the hash of the others, so that an altered
shape is found as an altered file is. That finds damage; it is no signature of an author.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pjrt_bridge.errors import SavedModelError

FILE = "manifest.json"
FORMAT = 3
"""The newest that is read; raised when older bridges would misread a folder.

1: programs; 2: programs in parts, and checks; 3: parts whose `obstacles` are `fallback_reasons`.
"""

KIND = "pjrt_bridge.exported_model"

T = TypeVar("T")


@dataclass(frozen=True)
class FileRecord:
    """Size in bytes, and SHA-256 in hex."""

    bytes: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """What `manifest.json` says.

    Attributes:
        versions: of what wrote the folder, by name (`pjrt_bridge`, `jaxlib`, `stablehlo`, and the
            exporter's own).
        exporter: who wrote it.
        files: every other file of the folder, by name.
        model: signature, weights and programs; see `exported.model`.
        format: the oldest that says all of it.
    """

    versions: Mapping[str, str]
    exporter: str
    files: Mapping[str, FileRecord]
    model: Mapping[str, Any]
    format: int = 1

    def write(self, folder: Path) -> None:
        """Write the manifest of a folder."""
        fields = {
            "kind": KIND,
            "format": self.format,
            "exporter": self.exporter,
            "versions": dict(self.versions),
            "files": {name: vars(record) for name, record in self.files.items()},
            "model": self.model,
        }
        text = json.dumps({**fields, "sha256": _hash(fields)}, indent=1)
        (folder / FILE).write_text(text + "\n")

    @classmethod
    def read(cls, folder: Path) -> Manifest:
        """The manifest of a folder; the files are not looked at.

        Raises:
            SavedModelError: there is none, of another kind or a newer format, truncated, altered.
        """
        path = folder / FILE
        try:
            found = json.loads(path.read_text())
        except OSError as error:
            raise SavedModelError(f"{path}: cannot be read: {error.strerror}") from error
        except ValueError as error:
            raise SavedModelError(f"{path}: truncated, or no JSON: {error}") from error
        kind = found.get("kind") if isinstance(found, dict) else None
        if kind != KIND:
            raise SavedModelError(f"{path}: field 'kind': found {kind!r}, needed {KIND!r}")
        if not isinstance(found.get("format"), int) or found["format"] > FORMAT:
            raise SavedModelError(
                f"{path}: field 'format': found {found.get('format')!r}, needed {FORMAT} or less; "
                f"it was written by {found.get('versions')}"
            )
        stated = found.pop("sha256", None)
        if (needed := _hash(found)) != stated:
            raise SavedModelError(
                f"{path}: field 'sha256': found {stated!r}, needed {needed!r}: it was altered"
            )
        return reading(
            path,
            lambda: cls(
                found["versions"],
                found["exporter"],
                {name: FileRecord(**record) for name, record in found["files"].items()},
                found["model"],
                found["format"],
            ),
        )

    def check(self, path: Path, data: memoryview) -> None:
        """See that a file holds what it held when it was written.

        Raises:
            SavedModelError: another size or other bytes, or the manifest does not know the file.
        """
        record = self.files.get(path.name)
        if record is None:
            raise SavedModelError(f"{path.parent / FILE}: field 'files': {path.name!r} is missing")
        if data.nbytes != record.bytes:
            raise SavedModelError(
                f"{path}: size: found {data.nbytes} bytes, needed {record.bytes}: "
                f"it {'is truncated' if data.nbytes < record.bytes else 'was altered'}"
            )
        found = hashlib.sha256(data).hexdigest()
        if found != record.sha256:
            raise SavedModelError(
                f"{path}: sha256: found {found}, needed {record.sha256}: it was altered"
            )


def reading(path: Path, read: Callable[[], T]) -> T:
    """What a function makes of a manifest's fields.

    Raises:
        SavedModelError: a field is missing or of another form.
    """
    try:
        return read()
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        if isinstance(error, SavedModelError):
            raise
        missing = f"{error.args[0]!r} is missing" if isinstance(error, KeyError) else str(error)
        raise SavedModelError(f"{path}: a field has another form: {missing}") from error


def _hash(fields: Mapping[str, Any]) -> str:
    text = json.dumps(fields, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
