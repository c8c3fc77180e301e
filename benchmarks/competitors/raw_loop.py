"""A loop in C over the plugin's function table: what a call costs with nothing in between.

`raw_loop.c` is compiled here, against the C header that comes with the plugin.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pjrt_bridge
from benchmarks.case import Case
from benchmarks.competitors import Absent, Timer
from benchmarks.competitors.programs import TorchProgram, program_of
from pjrt_bridge.runtime import Client, CompileOptions

SOURCE = Path(__file__).parent.parent / "raw_loop.c"


def prepare(case: Case, name: str) -> Timer:
    """A timer of the loop, over the program that the bridge makes of the case.

    Raises:
        Absent: no C compiler, or a plugin without its header.
        RuntimeError: what the compiler, or the plugin, has to say.
    """
    traced = program_of(case)
    with pjrt_bridge.client() as client, tempfile.TemporaryDirectory() as folder:
        loop = _build(client, Path(folder))
        program, options = Path(folder) / "program.mlir", Path(folder) / "options.pb"
        program.write_text(traced.emitted.program.text)
        options.write_bytes(CompileOptions(env=client.safe_flags).serialize())
        flags = [(name, value) for name, value in client.options.items() if type(value) is int]
        _check(
            loop.raw_open(
                str(client.plugin.library).encode(),
                str(program).encode(),
                str(options).encode(),
                (ctypes.c_char_p * len(flags))(*(name.encode() for name, _ in flags)),
                (ctypes.c_int64 * len(flags))(*(value for _, value in flags)),
                len(flags),
            )
        )
    return _Loop(loop, traced)


class _Loop:
    """The loop over a program's arguments; keeps the memory that the plugin reads."""

    def __init__(self, loop: ctypes.CDLL, traced: TorchProgram) -> None:
        self._loop = loop
        self._traced = traced
        for parameter in traced.emitted.bindings.parameters:
            position = parameter.position
            assert position is not None
            array, tensor = parameter.spec.memory, traced.tensors[position]
            _check(
                loop.raw_argument(
                    ctypes.c_void_p(tensor.data_ptr()),
                    array.dtype.code,
                    (ctypes.c_int64 * len(array.shape))(*array.shape),
                    len(array.shape),
                    position < traced.kept,
                )
            )

    def __call__(self, repeats: int) -> float:
        seconds = ctypes.c_double()
        _check(self._loop.raw_time(repeats, ctypes.byref(seconds)))
        return seconds.value


def _build(client: Client, folder: Path) -> ctypes.CDLL:
    library = client.plugin.library
    header = library and Path(library).parent / "include" / "pjrt_c_api.h"
    if not header or not header.exists():
        raise Absent(f"plugin {client.plugin.name!r} comes without pjrt_c_api.h")
    compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise Absent("no C compiler")
    target = folder / "raw_loop.so"
    command = [compiler, "-O2", "-shared", "-fPIC", f"-I{header.parent}", str(SOURCE), "-ldl"]
    done = subprocess.run([*command, "-o", str(target)], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{SOURCE.name}: {done.stderr.strip()}")
    loop = ctypes.CDLL(str(target))
    for function in (loop.raw_open, loop.raw_argument, loop.raw_time):
        function.restype = ctypes.c_char_p
    return loop


def _check(message: bytes | None) -> None:
    if message is not None:
        raise RuntimeError(message.decode())
