"""A trial read of bytecode of unknown origin, in another process.

MLIR's reader trusts what it reads: of altered bytecode it may follow counts and offsets beyond its
memory, or never end (found by fuzzing jaxlib 0.10.2). A process of its own, started with the first
bytecode of unknown origin, reads it before this one does; that costs about a second once, and then
as much as reading does.

`python -m pjrt_bridge.stablehlo.program.probe` is that process: on standard input a size (8 bytes,
little endian) and so many bytes; one byte back for each that was read, well or not.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import select
import subprocess
import sys
import threading

from pjrt_bridge import child_processes
from pjrt_bridge.errors import ProgramError
from pjrt_bridge.stablehlo import bindings
from pjrt_bridge.stablehlo.program.bytecode import is_artifact

LIMIT = 10.0
"""Seconds that reading may take, and one more for each MiB."""

_START = 120.0
_ATTEMPTS = 2

_lock = threading.Lock()
_process: subprocess.Popen[bytes] | None = None
_impossible = False


def check(data: bytes, what: str) -> None:
    """Check that reading bytecode does not end the process; other errors are not reported.

    Args:
        data: MLIR bytecode or a portable artifact.
        what: name of the input in error messages.

    Raises:
        ProgramError: MLIR's reader ends its process, or does not end within the time.
    """
    with _lock:
        # Damage by bytes read before may show late: the second process has read no others.
        for _ in range(_ATTEMPTS):
            failure = _try(data)
            if failure is None:
                return
        raise ProgramError(f"{what}: it was altered, MLIR's reader {failure}")


def _try(data: bytes) -> str | None:
    """How the trial read failed; None where it did not, or where no process can be started."""
    process = _started()
    if process is None:
        return None
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):
        process.stdin.write(len(data).to_bytes(8, "little") + data)
        process.stdin.flush()
    if _answered(process, LIMIT + len(data) / (1 << 20)):
        return None
    status = process.poll()
    _stop()
    return "does not come to an end" if status is None else f"ends its process ({status})"


def _answered(process: subprocess.Popen[bytes], seconds: float) -> bool:
    assert process.stdout is not None
    ready, _, _ = select.select([process.stdout], [], [], seconds)
    return bool(ready) and bool(process.stdout.read(1))


def _started() -> subprocess.Popen[bytes] | None:
    """The process; None where Python is embedded in a program that is no interpreter."""
    global _process, _impossible
    if _process is None and not _impossible:
        try:
            _process = subprocess.Popen(
                child_processes.command(__spec__.name),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=child_processes.environment(),
            )
        except OSError:
            _impossible = True
            return None
        if not _answered(_process, _START):
            _stop()
            _impossible = True
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


def _serve() -> None:
    bindings.load()
    answers = os.fdopen(os.dup(1), "wb")
    while True:
        answers.write(b"\1")
        answers.flush()
        size = sys.stdin.buffer.read(8)
        if len(size) < 8:
            return
        data = sys.stdin.buffer.read(int.from_bytes(size, "little"))
        read = bindings.deserialize if is_artifact(data) else bindings.parse
        with contextlib.suppress(ProgramError):
            str(read(data, "bytecode"))


if __name__ == "__main__":
    _serve()
else:
    atexit.register(_stop)
    os.register_at_fork(after_in_child=_start_again_in_child)
