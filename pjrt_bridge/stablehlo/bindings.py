"""The only importer of jaxlib: MLIR contexts, parsing, passes, serialization, diagnostics.

jaxlib ships the MLIR and StableHLO Python bindings. They are imported at the first call, so
programs that came serialized (or no program at all) cost no import. Every function that can meet
bad input turns MLIR's diagnostics into the text of a `ProgramError`.

Objects of the bindings are typed `Any` here: jaxlib ships stubs for a part of them only. What is in
a module is read and changed in `pjrt_bridge.stablehlo.modules`.
"""

from __future__ import annotations

import io
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

from pjrt_bridge.errors import ProgramError


@dataclass(frozen=True)
class Modules:
    """The modules of jaxlib that the package uses, loaded and with all passes registered."""

    ir: Any
    passmanager: Any
    stablehlo: Any
    chlo: Any
    sdy: Any
    mhlo: Any
    upstream: Any


_loading = threading.Lock()


def load() -> Modules:
    """The bindings, imported at the first call.

    Raises:
        ProgramError: jaxlib is missing or its MLIR bindings are.
    """
    with _loading:
        return _load()


@cache
def _load() -> Modules:
    try:
        from jaxlib.mlir import ir, passmanager
        from jaxlib.mlir._mlir_libs import _jax_mlir_ext
        from jaxlib.mlir.dialects import chlo, mhlo, sdy, stablehlo
    except ImportError as error:
        raise ProgramError(
            "StableHLO programs need the MLIR bindings of jaxlib, which cannot be imported "
            f"({error}); run: pip install jaxlib"
        ) from error
    stablehlo.register_stablehlo_passes()
    upstream = ir.DialectRegistry()
    _jax_mlir_ext.register_dialects(upstream)
    return Modules(ir, passmanager, stablehlo, chlo, sdy, mhlo, upstream)


def new_context() -> Any:
    """A fresh MLIR context with func, stablehlo, chlo, sdy and mhlo.

    A context interns types, attributes and constants for its whole life, so one is made per
    builder or per use (about a millisecond) and dies with it.
    """
    b = load()
    # An empty list: loading every available dialect would take most of the time.
    context = b.ir.Context(load_on_create_dialects=[])
    context.enable_multithreading(False)
    context.append_dialect_registry(b.upstream)
    _ = context.dialects["func"]
    b.stablehlo.register_dialect(context)
    b.chlo.register_dialect(context)
    b.sdy.register_dialect(context)
    b.mhlo.register_mhlo_dialect(context)
    return context


def explain(error: Exception) -> str:
    """MLIR's diagnostics in an error of the bindings, without positions, on one line."""
    diagnostics = getattr(error, "error_diagnostics", None)
    if not diagnostics:
        return " ".join(str(error).split())
    return "; ".join(_flatten(d) for d in diagnostics)


def _flatten(diagnostic: Any) -> str:
    notes = [_flatten(note) for note in diagnostic.notes]
    return " / ".join([" ".join(str(diagnostic.message).split()), *notes])


@contextmanager
def diagnostics(context: Any) -> Iterator[list[str]]:
    """Collect what functions of the bindings would otherwise print on stderr."""
    messages: list[str] = []

    def collect(diagnostic: Any) -> bool:
        messages.append(_flatten(diagnostic))
        return True

    handler = context.attach_diagnostic_handler(collect)
    try:
        yield messages
    finally:
        handler.detach()


def parse(source: str | bytes, what: str) -> Any:
    """A verified module from text or MLIR bytecode, in a context of its own.

    Args:
        source: StableHLO text, or bytecode of the dialects themselves (no portable artifact).
        what: name of the input in error messages.

    Raises:
        ProgramError: with MLIR's diagnostic and its position.
    """
    context = new_context()
    with diagnostics(context) as messages:
        try:
            return load().ir.Module.parse(source, context)
        except (load().ir.MLIRError, ValueError) as error:
            detail = str(error).removeprefix("Unable to parse module assembly:").strip()
            raise ProgramError(f"{what}: {'; '.join([detail, *messages])}") from None


def deserialize(artifact: bytes, what: str) -> Any:
    """A verified module from a portable artifact, in a context of its own.

    Raises:
        ProgramError: truncated, or written by a StableHLO newer than jaxlib's.
    """
    context = new_context()
    with diagnostics(context) as messages:
        try:
            return load().stablehlo.deserialize_portable_artifact(context, artifact)
        except ValueError as error:
            raise ProgramError(f"{what}: {'; '.join(messages) or error}") from None


def write_bytecode(module: Any) -> bytes:
    """The module as MLIR bytecode."""
    out = io.BytesIO()
    module.operation.write_bytecode(out)
    return out.getvalue()


def located_text(module: Any) -> str:
    """The module as text that names the source location of each operation."""
    return str(module.operation.get_asm(enable_debug_info=True, pretty_debug_info=False))


def write_artifact(module: Any, version: str, *, mixed: bool) -> bytes:
    """The module as a portable artifact; the module is used up, the bindings rewrite it in place.

    Args:
        module: a module without CHLO operations.
        version: target, such as `"1.8.0"`.
        mixed: keep other dialects' operations and attributes as they are, without the promise of
            stability; Shardy needs it.

    Raises:
        ProgramError: a version that is none, or that cannot express the module.
    """
    with diagnostics(module.context) as messages:
        try:
            artifact: bytes = load().stablehlo.serialize_portable_artifact(module, version, mixed)
        except ValueError as error:
            raise ProgramError(
                f"portable artifact for StableHLO {version!r}: {'; '.join(messages) or error}"
            ) from None
    return artifact


def run_passes(module: Any, *passes: str) -> None:
    """Run passes such as `func.func(chlo-legalize-to-stablehlo)` on the module; `""` is none.

    Raises:
        ProgramError: a pass failed.
    """
    b = load()
    pipeline = ",".join(filter(None, passes))
    try:
        manager = b.passmanager.PassManager.parse(f"builtin.module({pipeline})", module.context)
        manager.run(module.operation)
    except b.ir.MLIRError as error:
        raise ProgramError(f"pass pipeline {pipeline!r}: {explain(error)}") from None


def current_version() -> str:
    """The StableHLO version of the bindings, such as `"1.17.0"`."""
    return str(load().stablehlo.get_current_version())


def minimum_version() -> str:
    """The oldest StableHLO version that the bindings can write."""
    return str(load().stablehlo.get_minimum_version())


def compatibility_versions() -> tuple[str, ...]:
    """Versions to write for a reader of unknown age, from the most compatible to the newest."""
    stablehlo = load().stablehlo
    kinds = stablehlo.StablehloCompatibilityRequirement
    return tuple(
        str(stablehlo.get_version_from_compatibility_requirement(kind))
        for kind in (kinds.MAX, kinds.WEEK_12, kinds.WEEK_4)
    )


def parse_version(version: str) -> tuple[int, ...]:
    """A StableHLO version as a comparable tuple.

    Raises:
        ProgramError: not of the form `1.8.0`.
    """
    parts = version.split(".") if isinstance(version, str) else ()
    if len(parts) != 3 or not all(part.isascii() and part.isdigit() for part in parts):
        raise ProgramError(f"StableHLO version {version!r}: expected the form 1.8.0")
    return tuple(int(part) for part in parts)


def check_version(version: str) -> None:
    """Check that artifacts can be written for a StableHLO version.

    Raises:
        ProgramError: no version, or none that the bindings write.
    """
    oldest, newest = minimum_version(), current_version()
    if not parse_version(oldest) <= parse_version(version) <= parse_version(newest):
        raise ProgramError(
            f"StableHLO version {version!r}: expected one from {oldest} to {newest}, which "
            "jaxlib's bindings write"
        )


def add_interpreter_dialect(context: Any) -> None:
    """Make the interpreter's own operations known, such as `interpreter.run_parallel`."""
    load().stablehlo.register_interpreter_dialect(context)


def interpret(module: Any, arguments: list[Any], *, threads: bool = False) -> list[Any]:
    """Run a module's `main` in the reference interpreter, from and to dense attributes.

    Complex arguments or results would terminate the process, and so would a module with
    collective operations without `threads`: its processes make types of one context at a time.

    Raises:
        ProgramError: an operation that the interpreter does not know, or a failed check.
    """
    with diagnostics(module.context) as messages:
        module.context.enable_multithreading(threads)
        try:
            outputs: list[Any] = load().stablehlo.eval_module(module, arguments)
        except ValueError as error:
            raise ProgramError(f"interpreter: {'; '.join([str(error), *messages])}") from None
        finally:
            module.context.enable_multithreading(False)
    return outputs
