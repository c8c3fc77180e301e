"""The programs of a saved model: each as files, and as fields of the manifest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pjrt_bridge.errors import PjrtBridgeError, ProgramError, SavedModelError
from pjrt_bridge.exported import weights
from pjrt_bridge.exported.ahead import CompiledProgram
from pjrt_bridge.exported.checks import Check
from pjrt_bridge.exported.interface import Slot
from pjrt_bridge.exported.manifest import FILE, Manifest
from pjrt_bridge.exported.parts import HostPart, Part, SplitProgram, read_host_part
from pjrt_bridge.exported.running import graph_of
from pjrt_bridge.exported.specialization import Specialization
from pjrt_bridge.report.fallback_reason import FallbackReason
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


def restore(folder: Path, manifest: Manifest, data: Mapping[str, Any]) -> Specialization:
    """The program that `store` gave these fields for; its files are checked.

    Raises:
        SavedModelError: a file is missing, truncated or altered, or a part cannot be read.
        Exception: a field is missing or of another form; see `manifest.reading`.
    """
    program = _program(folder, manifest, data) if "file" in data else _split(folder, manifest, data)
    return Specialization(
        program,
        tuple(Slot(kind, of) for kind, of in data["parameters"]),
        tuple(slot and Slot(*slot) for slot in data["updates"]),
        tuple(Slot(kind, of) for kind, of in data["outputs"]),
        data["sizes"],
        tuple(map(Check.from_json, data.get("checks", ()))),
    )


def _program(folder: Path, manifest: Manifest, data: Mapping[str, Any]) -> Program:
    path, content = _content(folder, manifest, data["file"])
    try:
        program = SavedProgram(content, data["name"], Signature.from_json(data["signature"]))
        if "executable" not in data:
            return program
        path, executable = _content(folder, manifest, data["executable"])
        return CompiledProgram(content, program.name, program.signature, executable)
    except ProgramError as error:
        raise SavedModelError(f"{path}: {error}") from error


def _content(folder: Path, manifest: Manifest, file: str) -> tuple[Path, bytes]:
    path = folder / Path(file).name
    content = weights.map_file(path)
    manifest.check(path, content.data)
    return path, bytes(content)


def _split(folder: Path, manifest: Manifest, data: Mapping[str, Any]) -> SplitProgram:
    found = SplitProgram(
        data["name"],
        tuple(map(TensorType.from_json, data["types"])),
        tuple(_part(folder, manifest, part) for part in data["parts"]),
        tuple(data["results"]),
    )
    try:
        graph_of(found)
    except PjrtBridgeError as error:
        raise SavedModelError(f"{folder / FILE}: field 'parts': {error}") from error
    return found


def _part(folder: Path, manifest: Manifest, data: Mapping[str, Any]) -> Part:
    runs: Program | HostPart
    if "framework" in data:
        path, content = _content(folder, manifest, data["file"])
        runs = read_host_part(data["framework"], content, path)
    else:
        runs = _program(folder, manifest, data)
        counts = (len(data["inputs"]), len(data["outputs"]))
        needed = (len(runs.signature.parameters), len(runs.signature.results))
        if counts != needed:
            raise SavedModelError(
                f"{folder / FILE}: part {runs.name!r}: found {counts[0]} inputs and {counts[1]} "
                f"outputs, needed {needed[0]} and {needed[1]}"
            )
    reasons = data["fallback_reasons" if manifest.format > 2 else "obstacles"]
    return Part(
        runs,
        tuple(data["inputs"]),
        tuple(data["outputs"]),
        data["operators"],
        tuple(FallbackReason(**reason) for reason in reasons),
    )
