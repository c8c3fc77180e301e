"""A trial read of a program of unknown origin, in another process.

MLIR's reader trusts what it reads: of altered bytecode it may follow counts and offsets beyond its
memory, or never end (found by fuzzing jaxlib 0.10.2); of nested programs it overflows its stack. A
process of its own, started with the first such program, reads it before this one does, on a stack
smaller than this one's; that costs about a second once, and then as much as reading does.

`python -m pjrt_bridge.stablehlo.program.probe MIB` is that process, with a stack of so many MiB: on
standard input a size (8 bytes, little endian) and so many bytes; the same back, with one line of
JSON: `problem` with the program's nesting, and its `signature`, each empty where there is none.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import resource
import select
import subprocess
import sys
import threading

from pjrt_bridge import child_processes
from pjrt_bridge.errors import ProgramError
from pjrt_bridge.stablehlo import bindings, modules
from pjrt_bridge.stablehlo.program import nesting
from pjrt_bridge.stablehlo.program.bytecode import MAGIC, is_artifact
from pjrt_bridge.stablehlo.program.signature import read_signature

LIMIT = 10.0
"""Seconds that reading may take, and as many more for each MiB."""

MEMORY = 4 << 30
"""Bytes of memory that reading may take, and 100 more for each byte."""

_SMALL, _LARGE = 2, 1024
"""MiB of stack: less than any thread here has, and enough to see how deep a program is nested."""

_START = 120.0

_lock = threading.Lock()
_process: subprocess.Popen[bytes] | None = None
_impossible = False
_worked = False


def check(data: bytes, what: str) -> str | None:
    """Check that reading a program does not end the process; other errors are not reported.

    Args:
        data: MLIR bytecode, a portable artifact or text.
        what: name of the input in error messages.

    Returns:
        The signature of its `main` as JSON; empty where it has none that can be read, None where
        there can be no other process.

    Raises:
        ProgramError: MLIR's reader ends its process, or does not end within the time; the program
            is nested too deeply.
    """
    with _lock:
        found = _try(data, _SMALL)
        if isinstance(found, str):
            # How deep is it? And damage by bytes read before may show late.
            _stop()
            try:
                _told(_try(data, _LARGE), what)
            finally:
                # On its stack other programs would be read that end this process.
                _stop()
            found = _try(data, _SMALL)
        return _told(found, what)


def _told(found: dict[str, str] | str | None, what: str) -> str | None:
    """The signature that a process told.

    Raises:
        ProgramError: it told a problem, or failed.
    """
    if found is None:
        return None
    if isinstance(found, str):
        raise ProgramError(
            f"{what}: MLIR's reader {found}: it was altered, or is nested far deeper than the "
            f"{nesting.LEVELS} levels that are accepted"
        )
    if found["problem"]:
        raise ProgramError(f"{what}{found['problem']}")
    return found["signature"]


def _try(data: bytes, stack: int) -> dict[str, str] | str | None:
    """What a process found, or how it failed; None where none can be started."""
    process = _started(stack)
    if process is None:
        return None
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):
        process.stdin.write(len(data).to_bytes(8, "little") + data)
        process.stdin.flush()
    answer = _answer(process, LIMIT * (1 + len(data) / (1 << 20)))
    if answer:
        found: dict[str, str] = json.loads(answer)
        return found
    # One that is left would answer late.
    failure = "does not come to an end"
    if answer is not None:
        failure = f"ends its process ({process.wait()})"
    _stop()
    return failure


def _answer(process: subprocess.Popen[bytes], seconds: float) -> bytes | None:
    """A line; empty where the process has ended, None where time is up."""
    assert process.stdout is not None
    ready, _, _ = select.select([process.stdout], [], [], seconds)
    return process.stdout.readline() if ready else None


def _started(stack: int) -> subprocess.Popen[bytes] | None:
    """The process; None where Python is embedded in a program that is no interpreter.

    Raises:
        ProgramError: it could be started before, and now cannot.
    """
    global _process, _impossible, _worked
    if _process is None and not _impossible:
        try:
            _process = subprocess.Popen(
                child_processes.command(__spec__.name, str(stack)),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=child_processes.environment(),
            )
        except OSError:
            _impossible = True
            return None
        if not _answer(_process, _START):
            _stop()
            if _worked:
                raise ProgramError("the process that reads programs first cannot be started")
            _impossible = True
        else:
            _worked = True
    return _process


def _stop() -> None:
    global _process
    process, _process = _process, None
    if process is not None:
        process.kill()
        process.communicate()


def _start_again_in_child() -> None:
    # The process belongs to the parent.
    global _lock, _process
    _lock = threading.Lock()
    _process = None


def _serve(stack: int) -> None:
    bindings.load()
    answers = os.fdopen(os.dup(1), "wb")
    answer = {"problem": "", "signature": ""}
    while True:
        answers.write(json.dumps(answer).encode() + b"\n")
        answers.flush()
        size = sys.stdin.buffer.read(8)
        if len(size) < 8:
            return
        data = sys.stdin.buffer.read(int.from_bytes(size, "little"))
        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY + 100 * len(data), resource.RLIM_INFINITY))
        answer = _read(data, stack)


def _read(data: bytes, stack: int) -> dict[str, str]:
    try:
        if is_artifact(data):
            module = bindings.deserialize(data, "")
        else:
            module = bindings.parse(data if data.startswith(MAGIC) else data.decode(), "")
    except ProgramError:
        # The next reader reports it, too.
        return {"problem": "", "signature": ""}
    try:
        if stack == _LARGE:
            # Printed, regions take text by the square of their depth.
            nesting.check_regions(module, "")
        nesting.check(bindings.located_text(module).encode(), ", as text")
    except ProgramError as error:
        return {"problem": str(error), "signature": ""}
    signature = ""
    with contextlib.suppress(ProgramError):
        signature = json.dumps(read_signature(module, modules.find_main(module)).to_json())
    return {"problem": "", "signature": signature}


if __name__ == "__main__":
    _stack = int(sys.argv[1])
    threading.stack_size(_stack << 20)
    _reader = threading.Thread(target=_serve, args=(_stack,))
    _reader.start()
    _reader.join()
else:
    atexit.register(_stop)
    os.register_at_fork(after_in_child=_start_again_in_child)
