"""The manifest of a saved model: what is in the folder, by whom, and a hash of each file.

`manifest.json` is one JSON object. Its field `sha256` is the hash of the others, so that an altered
shape is found as an altered file is. That finds damage; it is no signature of an author.
"""

from __future__ import annotations

import hashlib
import json
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pjrt_bridge.errors import SavedModelError
from pjrt_bridge.exported import files
from pjrt_bridge.exported.fields import JsonField

FILE = "manifest.json"
FORMAT = 3
"""The newest that is read; raised when older bridges would misread a folder.

1: programs; 2: programs in parts, and checks; 3: parts whose `obstacles` are `fallback_reasons`.
"""

KIND = "pjrt_bridge.exported_model"


@dataclass(frozen=True)
class FileRecord:
    """Size in bytes, and SHA-256 in hex."""

    bytes: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """The contents of `manifest.json`.

    Attributes:
        versions: of what wrote the folder, by name (`pjrt_bridge`, `jaxlib`, `stablehlo`, and the
            exporter's own).
        exporter: who wrote it.
        files: every other file of the folder, by name.
        model: signature, weights and programs; see `exported.reading`.
        format: the oldest that says all of it.
    """

    versions: Mapping[str, str]
    exporter: str
    files: Mapping[str, FileRecord]
    model: JsonField
    format: int = 1

    def write(self, folder: Path) -> None:
        """Write the manifest of a folder."""
        fields = {
            "kind": KIND,
            "format": self.format,
            "exporter": self.exporter,
            "versions": dict(self.versions),
            "files": {name: vars(record) for name, record in self.files.items()},
            "model": self.model.value,
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
        content = files.read_file(path, files.MANIFEST_LIMIT)
        try:
            found = json.loads(content)
            found = found if isinstance(found, dict) else {}
            stated = found.pop("sha256", None)
            needed = _hash(found)
        except (ValueError, RecursionError) as error:
            raise SavedModelError(f"{path}: truncated, or no JSON: {error}") from error
        if found.get("kind") != KIND:
            kind = reprlib.repr(found.get("kind"))
            raise SavedModelError(f"{path}: field 'kind': found {kind}, needed {KIND!r}")
        format = found.get("format")
        if type(format) is not int or not 1 <= format <= FORMAT:
            raise SavedModelError(
                f"{path}: field 'format': found {format!r:.80}, needed {FORMAT} or less; "
                f"it was written by {reprlib.repr(found.get('versions'))}"
            )
        if needed != stated:
            raise SavedModelError(
                f"{path}: field 'sha256': found {reprlib.repr(stated)}, needed {needed!r}: it was "
                "altered"
            )
        fields = JsonField(path, found)
        return cls(
            {name: version.text() for name, version in fields["versions"].members().items()},
            fields["exporter"].text(),
            {name: _record(name, item) for name, item in fields["files"].members().items()},
            fields["model"],
            format,
        )

    def check(self, path: Path, data: memoryview) -> None:
        """Check that a file holds what it held when it was written.

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


def _record(name: str, field: JsonField) -> FileRecord:
    if not files.is_plain(name):
        raise SavedModelError(
            f"{field.file}: field 'files': found the name {reprlib.repr(name)}, needed that of a "
            "file in this folder: letters, digits, '_', '-' and '.'"
        )
    return FileRecord(field["bytes"].number(), field["sha256"].text())


def _hash(fields: Mapping[str, Any]) -> str:
    text = json.dumps(fields, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
