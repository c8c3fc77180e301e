"""ExportedModel: programs, weights and how to call them; saved as a folder, loaded from one."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any

from pjrt_bridge import dtypes, registry
from pjrt_bridge.errors import DataError, OptionError, ProgramError, SavedModelError
from pjrt_bridge.exported import weights as files
from pjrt_bridge.exported.ahead import ProgramCompiler, compile_ahead
from pjrt_bridge.exported.fields import JsonField
from pjrt_bridge.exported.files import Array
from pjrt_bridge.exported.interface import Interface, Weight, leaf_to_json
from pjrt_bridge.exported.loaded import LoadedModel
from pjrt_bridge.exported.manifest import FILE, FileRecord, Manifest
from pjrt_bridge.exported.parts import SplitProgram
from pjrt_bridge.exported.reading import (
    WEIGHTS,
    check_weights,
    read_interface,
    read_programs,
    read_symbols,
    read_tensors,
    read_weights,
)
from pjrt_bridge.exported.reporting import report
from pjrt_bridge.exported.running import readable
from pjrt_bridge.exported.specialization import Specialization
from pjrt_bridge.exported.stored import PREFIX, store
from pjrt_bridge.report.report import Report
from pjrt_bridge.runtime import Client, Compiled, CompileOptions
from pjrt_bridge.stablehlo.program.program import Program
from pjrt_bridge.wrong_arguments import checked_methods, wrong


@checked_methods
@dataclass(frozen=True, repr=False)
class ExportedModel:
    """A model as StableHLO, apart from the framework that it was written in.

    Attributes:
        name: of the model.
        interface: how it is called.
        weights: by their names in the framework.
        tensors: the weights' elements, by the names that `Weight.tensor` gives.
        specializations: one program for each choice of symbolic sizes.
        exporter: what made it, such as `"torch 2.13.0"`.
        symbols: for each symbolic size its least and its largest value, as far as they are known.
        target: StableHLO version that the artifacts are written for; None: the newest.
    """

    name: str
    interface: Interface
    weights: Mapping[str, Weight]
    tensors: Mapping[str, Array]
    specializations: tuple[Specialization, ...]
    exporter: str
    symbols: Mapping[str, tuple[int | None, int | None]]
    target: str | None = None

    def __repr__(self) -> str:
        sizes = (one.dtype.itemsize * math.prod(one.shape) for one in self.weights.values())
        arguments = ", ".join(argument.name for argument in self.interface.arguments)
        return (
            f"ExportedModel({self.name}({arguments}): {len(self.specializations)} program(s), "
            f"{len(self.weights)} weights of {sum(sizes):,} bytes)"
        )

    @property
    def program(self) -> Program:
        """The program; of several the first.

        Raises:
            ProgramError: it is in parts.
        """
        found = self.specializations[0].program
        if isinstance(found, SplitProgram):
            raise ProgramError(
                f"model {self.name!r}: its program is in {len(found.parts)} parts, some of them on "
                "the host; `report()` tells which and why, and those for the device are files of "
                "their own in the saved model"
            )
        return found

    def artifact(self) -> bytes:
        """The portable artifact of `program` for the target.

        Raises:
            ProgramError: the target cannot express it, or it is in parts.
        """
        return self.program.portable_artifact(self.target)

    def with_weights(self, arrays: Mapping[str, Any]) -> ExportedModel:
        """The model with other values of some weights, such as a trained state.

        Args:
            arrays: by the names in `weights`; anything that NumPy can view.

        Raises:
            DataError: no such weight, another shape or another element type.
        """
        import numpy as np

        if not isinstance(arrays, Mapping):
            raise DataError(wrong(f"model {self.name!r}", arrays, "a mapping of names to arrays"))
        tensors = dict(self.tensors)
        for name, value in arrays.items():
            weight = self.weights.get(name)
            if weight is None:
                raise DataError(f"model {self.name!r} has no weight {name!r}")
            try:
                array = np.asarray(value)
            except ValueError as error:
                raise DataError(f"weight {name!r}: {error}") from error
            if dtypes.from_numpy(array.dtype) != weight.dtype or array.shape != weight.shape:
                raise DataError(
                    f"weight {name!r}: found {array.dtype}{list(array.shape)}, expected "
                    f"{weight.dtype}{list(weight.shape)}"
                )
            tensors[weight.tensor] = array
        return replace(self, tensors=tensors)

    def report(self) -> Report:
        """A report of what runs on a device and what on the host, and why; also as text."""
        return report(self.name, self.specializations)

    # -- compiling ahead -------------------------------------------------------------------------

    @property
    def device_programs(self) -> tuple[Program, ...]:
        """All programs that a device runs: of each specialization one, or those of its parts."""
        return tuple(program for one in self.specializations for program in one.device_programs)

    def compile_for(
        self, compiler: ProgramCompiler, *, options: CompileOptions | None = None
    ) -> ExportedModel:
        """The model with its programs compiled: loading it compiles nothing.

        It runs on the platform that it was compiled for, and can be compiled for another one.

        Args:
            compiler: a Client, for its devices; or a Topology, for devices that are elsewhere.
            options: for compiling.

        Raises:
            SavedModelError: a program that cannot be expressed for the plugin's StableHLO versions.
            PjrtError: the plugin cannot compile or serialize one.
        """
        if not callable(getattr(compiler, "compile", None)) or not hasattr(compiler, "plugin"):
            raise OptionError(wrong("compile_for", compiler, "a Client or a Topology"))

        def compiled(program: Program) -> Compiled:
            return compiler.compile(readable(program, compiler.plugin), options=options)

        programs = tuple(compile_ahead(one, compiled, self.target) for one in self.specializations)
        return replace(self, specializations=programs)

    # -- running ---------------------------------------------------------------------------------

    def load_on(
        self,
        client: Client | None = None,
        *,
        seed: int | None = None,
        options: CompileOptions | None = None,
    ) -> LoadedModel:
        """The model on a device: weights are put once, programs compiled when they are first used.

        Of what `compile_for` gave, programs are loaded then.

        Args:
            client: of the plugin; by default that of `pjrt_bridge.client()`.
            seed: of what the model draws; None: another one in each process.
            options: for compiling.
        """
        return LoadedModel(
            self.name,
            self.interface,
            self.weights,
            self.tensors,
            self.specializations,
            registry.client() if client is None else client,
            seed=seed,
            options=options,
        )

    # -- on disk ---------------------------------------------------------------------------------

    def save(self, folder: str | Path) -> None:
        """Write a folder: `manifest.json`, `weights.safetensors`, and each program in three forms.

        `program_0.stablehlo` is the portable artifact, which loading reads; `.mlirbc` is bytecode
        and `.mlir` text, both with the source locations; `.executable` is what a compiler made of
        it, where `compile_for` was called. Of a program in parts each part has its
        files, `program_0_0.stablehlo` and so on; what runs on the host is in its framework's form.

        Raises:
            ProgramError: the target version cannot express a program.
            UnsupportedDtype: a weight whose element type safetensors do not have.
            DataError: the folder exists and holds something else, or cannot be written.
        """
        path = Path(folder)
        stored = [store(one, index, self.target) for index, one in enumerate(self.specializations)]
        model = self._to_json([fields for fields, _ in stored])
        format = max((one.format for one in self.specializations), default=1)
        try:
            _make_room(path)
            contents = {name: content for _, made in stored for name, content in made.items()}
            for name, content in contents.items():
                (path / name).write_bytes(content)
            found = {name: _record(content) for name, content in contents.items()}
            if self.tensors:
                sha256 = files.write(path / WEIGHTS, self.tensors)
                found[WEIGHTS] = FileRecord((path / WEIGHTS).stat().st_size, sha256)
            fields = JsonField(path / FILE, model)
            Manifest(_versions(), self.exporter, found, fields, format).write(path)
        except OSError as error:
            raise DataError(f"{path}: cannot be written: {error.strerror}") from error
        except ValueError as error:
            raise DataError(f"{path}: found {str(path)!r}, expected a path: {error}") from error

    @classmethod
    def load(cls, folder: str | Path, *, trusted: bool = False) -> ExportedModel:
        """Read what `save` wrote; every file is checked, the weights are mapped and not copied.

        Needs neither the framework nor the model's code, nor jaxlib; the framework only where parts
        of the model run in it. The first use of a program of unknown origin takes another process
        that reads it with jaxlib.

        Args:
            folder: that was written.
            trusted: the folder is of somebody whose programs you would run. Only then are parts
                that a framework runs loaded (`.pt2`), and what was compiled ahead of time
                (`.executable`): both are code. Programs are not read by another process first.

        Raises:
            SavedModelError: a file is missing, truncated or altered, the format is newer, what the
                files hold does not go together, a framework that runs parts is missing, or the
                folder holds code and is not trusted.
        """
        if not isinstance(folder, (str, os.PathLike)):
            raise SavedModelError(wrong("saved model", folder, "the path of a folder"))
        path = Path(folder)
        manifest = Manifest.read(path)
        model = manifest.model
        interface, weights = read_interface(model), read_weights(model)
        tensors = read_tensors(path, manifest, weights)
        check_weights(path / WEIGHTS, weights, tensors)
        return cls(
            model["name"].text(),
            interface,
            weights,
            tensors,
            read_programs(path, manifest, interface, weights, trusted=trusted),
            manifest.exporter,
            read_symbols(model),
            model["target"].optional_text(),
        )

    def _to_json(self, programs: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "name": self.name,
            "target": self.target,
            "arguments": [
                {"name": argument.name, "tree": argument.tree.to_json()}
                for argument in self.interface.arguments
            ],
            "inputs": list(map(leaf_to_json, self.interface.inputs)),
            "outputs": self.interface.outputs.to_json(),
            "symbols": {name: list(limits) for name, limits in self.symbols.items()},
            "weights": {
                name: {**asdict(weight), "dtype": weight.dtype.name, "shape": list(weight.shape)}
                for name, weight in self.weights.items()
            },
            "programs": programs,
        }


def check_room(folder: Path) -> None:
    """Check that a model can be saved there: in a new or empty folder, or in place of another one.

    Raises:
        DataError: something else is there.
    """
    if folder.exists() and not folder.is_dir():
        raise DataError(f"{folder}: cannot be written: it is a file; give a new folder")
    if folder.is_dir() and any(folder.iterdir()) and not (folder / FILE).exists():
        raise DataError(f"{folder}: holds files and no {FILE}; give a new folder")


def _make_room(folder: Path) -> None:
    """An empty folder, or one that a model was saved in, without that model's files."""
    check_room(folder)
    folder.mkdir(parents=True, exist_ok=True)
    old = {path.name for path in folder.iterdir()}
    if not old:
        return
    # The manifest goes first: what is left of an interrupted save is no model.
    (folder / FILE).unlink()
    for name in old:
        if name == WEIGHTS or name.startswith(PREFIX):
            (folder / name).unlink()


def _record(content: bytes) -> FileRecord:
    import hashlib

    return FileRecord(len(content), hashlib.sha256(content).hexdigest())


def _versions() -> dict[str, str]:
    found = {}
    for package in ("pjrt-bridge", "jaxlib"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[package] = metadata.version(package)
    return found
