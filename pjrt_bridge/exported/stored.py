"""The programs of a saved model: each as files, and as fields of the manifest."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any, get_args

from pjrt_bridge.errors import PjrtBridgeError, ProgramError, SavedModelError
from pjrt_bridge.exported.ahead import CompiledProgram
from pjrt_bridge.exported.fields import JsonField
from pjrt_bridge.exported.files import PROGRAM_LIMIT, is_plain, read_file
from pjrt_bridge.exported.foreign import ForeignProgram
from pjrt_bridge.exported.manifest import FILE, Manifest
from pjrt_bridge.exported.parts import HostPart, Part, SplitProgram, read_host_part
from pjrt_bridge.exported.running import graph_of
from pjrt_bridge.exported.specialization import Specialization
from pjrt_bridge.report.fallback_reason import FallbackReason, ReasonKind
from pjrt_bridge.stablehlo.program.program import Program
from pjrt_bridge.stablehlo.program.saved import SavedProgram
from pjrt_bridge.stablehlo.types import Signature, TensorType

PREFIX = "program_"
"""What the names of programs' files begin with."""

Files = dict[str, bytes]


def store(one: Specialization, index: int, target: str | None) -> tuple[dict[str, Any], Files]:
    """A program's fields of the manifest, and its files by name.

    Raises:
        ProgramError: the target version cannot express it.
    """
    name = f"{PREFIX}{index}"
    fields: dict[str, Any] = {
        "name": one.program.name,
        "sizes": dict(one.sizes),
        "parameters": [[slot.kind, slot.of] for slot in one.parameters],
        "updates": [slot and [slot.kind, slot.of] for slot in one.updates],
        "outputs": [[slot.kind, slot.of] for slot in one.outputs],
    }
    if one.checks:
        fields["checks"] = [check.to_json() for check in one.checks]
    if isinstance(one.program, Program):
        stored, files = _store_program(one.program, name, target)
        return {**fields, **stored}, files
    files = {}
    parts = []
    for number, part in enumerate(one.program.parts):
        stored, made = _store_part(part, f"{name}_{number}", target)
        parts.append(stored)
        files |= made
    types = [type.to_json() for type in one.program.parameters]
    return {**fields, "types": types, "results": one.program.results, "parts": parts}, files


def _store_program(program: Program, name: str, target: str | None) -> tuple[dict[str, Any], Files]:
    files = {
        f"{name}.stablehlo": program.portable_artifact(target),
        f"{name}.mlirbc": program.bytecode(),
        f"{name}.mlir": program.located_text.encode(),
    }
    fields = {"file": f"{name}.stablehlo", "signature": program.signature.to_json()}
    if isinstance(program, CompiledProgram):
        fields["executable"] = f"{name}.executable"
        files[f"{name}.executable"] = program.executable
    return fields, files


def _store_part(part: Part, name: str, target: str | None) -> tuple[dict[str, Any], Files]:
    fields: dict[str, Any] = {
        "inputs": part.inputs,
        "outputs": part.outputs,
        "operators": dict(part.operators),
        "fallback_reasons": [asdict(reason) for reason in part.fallback_reasons],
    }
    if isinstance(part.runs, Program):
        stored, files = _store_program(part.runs, name, target)
        return {**fields, "name": part.runs.name, **stored}, files
    file = name + part.runs.suffix
    return {**fields, "framework": part.runs.framework, "file": file}, {file: part.runs.content()}


def restore(
    folder: Path, manifest: Manifest, data: JsonField, *, trusted: bool
) -> Program | SplitProgram:
    """The program that `store` gave these fields for; its files are checked.

    Args:
        folder: of the model.
        manifest: of the folder.
        data: the fields.
        trusted: files that run code when they are loaded may be loaded.

    Raises:
        SavedModelError: a file is missing, truncated, altered or not trusted, a part cannot be
            read, or a field is of another form.
    """
    reader = _ManifestReader(folder, manifest, trusted)
    return reader.program(data) if data.find("file") else reader.split(data)


class _ManifestReader:
    def __init__(self, folder: Path, manifest: Manifest, trusted: bool) -> None:
        self._folder = folder
        self._manifest = manifest
        self._trusted = trusted

    def program(self, data: JsonField) -> Program:
        """A program for a device."""
        path, artifact = self._content(data["file"])
        name, signature = data["name"].text(), data["signature"].parsed(Signature.from_json)
        compiled = data.find("executable")
        if compiled is not None:
            executable_path, executable = self._code(compiled, "what a compiler made of the model")
            path = executable_path
        try:
            if compiled is not None:
                return CompiledProgram(artifact, name, signature, executable)
            if self._trusted:
                return SavedProgram(artifact, name, signature)
            return ForeignProgram(artifact, name, signature, path)
        except ProgramError as error:
            raise SavedModelError(f"{path}: {error}") from error

    def split(self, data: JsonField) -> SplitProgram:
        """A program in parts."""
        found = SplitProgram(
            data["name"].text(),
            tuple(item.parsed(TensorType.from_json) for item in data["types"].items()),
            tuple(map(self._part, data["parts"].items())),
            data["results"].numbers(),
        )
        try:
            graph_of(found)
        except PjrtBridgeError as error:
            raise SavedModelError(f"{self._folder / FILE}: field 'parts': {error}") from error
        return found

    def _part(self, data: JsonField) -> Part:
        runs: Program | HostPart
        inputs, outputs = data["inputs"].numbers(), data["outputs"].numbers()
        framework = data.find("framework")
        if framework is not None:
            path, content = self._code(data["file"], f"a part that {framework.text()} runs")
            runs = read_host_part(framework.text(), content, path)
        else:
            runs = self.program(data)
            counts = (len(inputs), len(outputs))
            needed = (len(runs.signature.parameters), len(runs.signature.results))
            if counts != needed:
                raise SavedModelError(
                    f"{self._folder / FILE}: part {runs.name!r}: found {counts[0]} inputs and "
                    f"{counts[1]} outputs, needed {needed[0]} and {needed[1]}"
                )
        reasons = data["fallback_reasons" if self._manifest.format > 2 else "obstacles"]
        return Part(
            runs,
            inputs,
            outputs,
            {name: count.number() for name, count in data["operators"].members().items()},
            tuple(
                FallbackReason(
                    reason["operator"].text(),
                    reason["reason"].text(),
                    reason["kind"].choice(*get_args(ReasonKind)),
                    reason["source"].optional_text(),
                )
                for reason in reasons.items()
            ),
        )

    def _code(self, field: JsonField, what: str) -> tuple[Path, bytes]:
        """A file whose contents run."""
        if not self._trusted:
            raise SavedModelError(
                f"{self._folder / field.text()}: {what}, and loading it runs code that is in the "
                "file. If you made this folder, or would run a program of whoever did, use "
                "ExportedModel.load(folder, trusted=True), or `pjrt-bridge run --trusted`"
            )
        return self._content(field)

    def _content(self, field: JsonField) -> tuple[Path, bytes]:
        name = field.text()
        if not is_plain(name):
            raise field.error("the name of a file in this folder: letters, digits, '_', '-', '.'")
        path = self._folder / name
        content = read_file(path, PROGRAM_LIMIT)
        self._manifest.check(path, memoryview(content))
        return path, content
