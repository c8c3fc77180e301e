"""Program: one StableHLO module, immutable, in whatever form a plugin or a file needs.

A program is kept as MLIR bytecode and parsed afresh where its text or an artifact is wanted, so no
MLIR context stays alive for it.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from types import NoneType
from typing import Any, Literal

from pjrt_bridge import bounded_files
from pjrt_bridge.dtypes import DType
from pjrt_bridge.errors import ProgramError
from pjrt_bridge.stablehlo import bindings, composites, guarding, modules
from pjrt_bridge.stablehlo.program import gate
from pjrt_bridge.stablehlo.program.bytecode import MAGIC, PRODUCER, is_artifact
from pjrt_bridge.stablehlo.program.signature import read_signature
from pjrt_bridge.stablehlo.types import Signature
from pjrt_bridge.wrong_arguments import checked_methods, require, wrong

LARGEST_FILE = 1 << 32
"""Bytes of a file with a program; more are not read."""

_SUFFIXES = frozenset({".mlir", ".mlirbc", ".stablehlo", ".vhlo"})


def read_file(path: Path) -> bytes:
    """What a file of a program holds.

    Raises:
        ProgramError: it cannot be read, or is larger than programs are.
    """
    try:
        return bounded_files.read(path, LARGEST_FILE)
    except (OSError, ValueError, MemoryError) as error:
        reason = bounded_files.reason(error)
        raise ProgramError(f"program: cannot read {str(path)!r}: {reason}") from error


@checked_methods
class Program:
    """A StableHLO module with a public function `main`.

    Make one with `Builder.finish` or one of the `from_` methods.

    Attributes:
        name: the module's symbol name, `"main"` where it has none.
    """

    def __init__(self, bytecode: bytes, name: str, signature: Signature | ProgramError) -> None:
        self._bytecode = bytecode
        self._signature = signature
        self.name = name

    @classmethod
    def from_module(cls, module: Any) -> Program:
        """A program from a verified MLIR module of the bindings; the module can be dropped.

        Raises:
            ArgumentError: it is no MLIR module.
            ProgramError: no public function `main`.
        """
        require(module, bindings.load().ir.Module, "Program.from_module: module")
        main = modules.find_main(module)
        # Programs that cannot be compiled as they are (dynamic parameters, ...) can still be
        # read, converted and saved: the error is raised where the signature is asked for.
        signature: Signature | ProgramError
        try:
            signature = read_signature(module, main)
        except ProgramError as error:
            signature = error.with_traceback(None)
        return cls(bindings.write_bytecode(module), modules.module_name(module), signature)

    @classmethod
    def from_text(cls, text: str) -> Program:
        """A program from StableHLO text.

        Raises:
            ProgramError: MLIR's diagnostic for text that does not parse or verify; nested too
                deeply; no public function `main`.
        """
        gate.check_text(text, "StableHLO text")
        return cls.from_module(bindings.parse(text, "StableHLO text"))

    @classmethod
    def from_bytecode(cls, data: bytes) -> Program:
        """A program from MLIR bytecode, which only about the same jaxlib version reads.

        Raises:
            ProgramError: no bytecode, truncated, of another version; no public function `main`.
        """
        if not isinstance(data, bytes):
            raise ProgramError(wrong("MLIR bytecode", data, "bytes"))
        if not data.startswith(MAGIC):
            raise ProgramError(f"MLIR bytecode: must start with {MAGIC!r}: {data[:8]!r}")
        gate.check_bytes(data, "MLIR bytecode")
        return cls.from_module(bindings.parse(data, "MLIR bytecode"))

    @classmethod
    def from_portable_artifact(cls, data: bytes) -> Program:
        """A program from a portable artifact, StableHLO's form that is stable over versions.

        Raises:
            ProgramError: no artifact, truncated, newer than jaxlib; no public function `main`.
        """
        if not isinstance(data, bytes):
            raise ProgramError(wrong("portable artifact", data, "bytes"))
        if not is_artifact(data):
            raise ProgramError(
                f"portable artifact: must start with {MAGIC!r} and name "
                f"{PRODUCER.decode()!r} as its producer, found {data[:24]!r}"
            )
        gate.check_bytes(data, "portable artifact")
        return cls.from_module(bindings.deserialize(data, "portable artifact"))

    @classmethod
    def parse(cls, content: str | bytes) -> Program:
        """A program from text, bytecode or a portable artifact; the content decides.

        Raises:
            ProgramError: it is none of these, or it does not parse.
        """
        if _is_path(content):
            raise ProgramError(
                f"program: found the path {str(content)!r}, expected StableHLO; "
                "Program.from_file(path) reads a file"
            )
        given: object = content
        if not isinstance(given, (str, bytes)):
            expected = "StableHLO as str or bytes, or a Program"
            raise ProgramError(wrong("program", given, expected))
        if isinstance(content, str):
            return cls.from_text(content)
        if is_artifact(content):
            return cls.from_portable_artifact(content)
        if content.startswith(MAGIC):
            return cls.from_bytecode(content)
        try:
            return cls.from_text(content.decode())
        except UnicodeDecodeError as error:
            raise ProgramError(
                f"program: neither MLIR bytecode nor text, starts with {content[:8]!r}"
            ) from error

    @classmethod
    def from_file(cls, path: str | Path) -> Program:
        """A program from a file in any of the three forms; the content decides, not the name.

        Raises:
            ProgramError: the file cannot be read or parsed.
        """
        if not isinstance(path, (str, os.PathLike)):
            raise ProgramError(wrong("program", path, "the path of a file"))
        content = read_file(Path(path))
        try:
            return cls.parse(content)
        except ProgramError as error:
            raise ProgramError(f"{path}: {error}") from error

    @property
    def signature(self) -> Signature:
        """Parameters and results of `main`.

        Raises:
            ProgramError: a type that no PJRT program can have: dynamic parameters, results
                without bounds, tokens, quantized elements, an unreadable sharding or layout.
        """
        if isinstance(self._signature, ProgramError):
            raise ProgramError(str(self._signature))
        return self._signature

    @property
    def text(self) -> str:
        """Pretty StableHLO text, without source locations."""
        return str(self._module())

    @property
    def located_text(self) -> str:
        """Pretty StableHLO text with the source locations of the user's lines."""
        return bindings.located_text(self._module())

    def bytecode(self) -> bytes:
        """MLIR bytecode with source locations; tied to jaxlib's version."""
        return self._bytecode

    def portable_artifact(self, version: str | None = None) -> bytes:
        """The program in the form that is stable over StableHLO versions.

        CHLO operations are decomposed, since the form has none, and so are composites for versions
        that have none. Comparisons and divisions are guarded (`guarding`). Shardy's attributes stay
        as they are: the form promises no stability for them.

        Args:
            version: target such as `"1.8.0"`; None: the newest that the bindings write.

        Raises:
            ProgramError: no version, out of the bindings' range, or one that lacks a feature of
                the program.
        """
        module = self._module()
        version = bindings.current_version() if version is None else version
        parts = bindings.parse_version(version)
        if self.may_have_composites and parts < bindings.parse_version(composites.SINCE):
            composites.inline(module)
        if b"chlo" in self.bytecode():
            bindings.run_passes(module, "func.func(chlo-legalize-to-stablehlo)")
        if any(name in self.bytecode() for name in guarding.NAMES):
            guarding.guard(module)
        return bindings.write_artifact(module, version, mixed=self.may_be_sharded)

    def serialize_for(self, plugin_version: str | None) -> bytes:
        """A portable artifact that a plugin can read.

        Args:
            plugin_version: the plugin's `stablehlo_current_version` (`"1.13.3"`); the older of
                this and the bindings' version is written. None, where the plugin does not tell:
                the oldest version of StableHLO's compatibility window that can express the
                program.

        Raises:
            ProgramError: not expressible, or no version.
        """
        if plugin_version is not None:
            ours = bindings.current_version()
            return self.portable_artifact(min(plugin_version, ours, key=bindings.parse_version))
        for version in bindings.compatibility_versions():
            try:
                return self.portable_artifact(version)
            except ProgramError:
                continue
        return self.portable_artifact()

    def with_layouts(
        self,
        parameters: Mapping[int, Sequence[int] | None] | None = None,
        results: Mapping[int, Sequence[int] | Literal["auto"] | None] | None = None,
    ) -> Program:
        """The same program with other layouts on the device (`mhlo.layout_mode`).

        Args:
            parameters: index to minor-to-major order; None is the plugin's default.
            results: the same; `"auto"` leaves the order to the compiler.

        Raises:
            ProgramError: no such parameter or result, an order of another rank, a parameter with
                `"auto"`.
        """
        for orders in (parameters, results):
            if not isinstance(orders, (Mapping, NoneType)):
                raise ProgramError(wrong("layouts", orders, "a mapping of indices to orders"))
        module = self._module()
        main = modules.find_main(module)
        for name, wanted, what, count in (
            ("arg_attrs", parameters, "parameter", len(main.type.inputs)),
            ("res_attrs", results, "result", len(main.type.results)),
        ):
            unknown = [index for index in wanted or {} if index not in range(count)]
            if unknown:
                raise ProgramError(
                    f"program {self.name!r}: no {what} {unknown[0]}; it has {count} {what}s"
                )
            modes = {index: _layout_mode(order) for index, order in (wanted or {}).items()}
            if modes:
                modules.attach(main, name, "mhlo.layout_mode", modes)
        program = Program.from_module(module)
        if isinstance(program._signature, ProgramError):
            raise program._signature
        return program

    @cached_property
    def custom_calls(self) -> frozenset[str]:
        """Targets of its custom calls."""
        if b"custom_call" not in self.bytecode():
            return frozenset()
        return frozenset(target for target, _, _ in self.call_forms())

    @property
    def may_be_sharded(self) -> bool:
        """Whether something in it is divided by Shardy's attributes."""
        return b"sdy" in self.bytecode()

    @property
    def may_have_composites(self) -> bool:
        """Whether something in it may be a composite."""
        return b"composite" in self.bytecode()

    def call_forms(self) -> frozenset[tuple[str, int, int]]:
        """Target, number of operands and number of results of its custom calls."""
        return self._survey.calls

    def has_constant(self, dtype: DType) -> bool:
        """Whether it has a constant of an element type."""
        return dtype.stablehlo in self._survey.constants

    def loops(self) -> tuple[int, ...]:
        """Bytes of each large value that a compiler computes by a loop of its own making."""
        return self._survey.loops

    @cached_property
    def _survey(self) -> modules.Survey:
        return modules.survey(self._module())

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 in hex of the bytecode without source locations.

        Survives text and bytecode. A portable artifact spells out defaults, so the program that
        comes back from one may have another fingerprint.
        """
        module = self._module()
        bindings.run_passes(module, "strip-debuginfo")
        return hashlib.sha256(bindings.write_bytecode(module)).hexdigest()

    def save(self, path: str | Path) -> None:
        """Write a file; its suffix decides the form.

        Args:
            path: `.mlir` for text, `.mlirbc` for bytecode, `.stablehlo` or `.vhlo` for a portable
                artifact of the newest version.

        Raises:
            ProgramError: another suffix, or the file cannot be written.
        """
        match Path(path).suffix:
            case ".mlir":
                content = self.text.encode()
            case ".mlirbc":
                content = self.bytecode()
            case ".stablehlo" | ".vhlo":
                content = self.portable_artifact()
            case suffix:
                raise ProgramError(
                    f"program: suffix {suffix!r} of {str(path)!r} is none of .mlir (text), "
                    ".mlirbc (bytecode), .stablehlo and .vhlo (portable artifact)"
                )
        try:
            Path(path).write_bytes(content)
        except OSError as error:
            raise ProgramError(f"program: cannot write {str(path)!r}: {error.strerror}") from error

    def _module(self) -> Any:
        return bindings.parse(self.bytecode(), f"program {self.name!r}")

    def __repr__(self) -> str:
        return f"Program({self.name!r}, {len(self._bytecode)} bytes)"


def _is_path(content: object) -> bool:
    """Whether the name of a file was given in place of its contents."""
    return isinstance(content, os.PathLike) or (
        isinstance(content, str)
        and 0 < len(content) < 4096
        and not any(sign in content for sign in "\n{}()")
        and (os.sep in content or Path(content).suffix in _SUFFIXES)
    )


def _layout_mode(order: Sequence[int] | str | None) -> str | None:
    if order is None or (isinstance(order, str) and order == "auto"):
        return order
    if not isinstance(order, (list, tuple)) or any(type(item) is not int for item in order):
        raise ProgramError(wrong("layout", order, "a minor-to-major list, 'auto' or None"))
    return f"{{{','.join(map(str, order))}}}"
