"""Processes of torch.distributed that a test starts together."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[3]


def outputs_of(script: str, arguments: Sequence[Sequence[str]], *, timeout: float) -> list[str]:
    """What each process printed; all have to succeed.

    Args:
        script: the module that they run.
        arguments: for each process its arguments.
        timeout: seconds for each.
    """
    running = [
        subprocess.Popen(
            [sys.executable, "-m", script, *given],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for given in arguments
    ]
    # One that waits for a collective of another's would wait for ever.
    try:
        outputs = [process.communicate(timeout=timeout)[0] for process in running]
    finally:
        for process in running:
            process.kill()
            process.wait()
    for process, output in zip(running, outputs, strict=True):
        assert process.returncode == 0, output
    return outputs
