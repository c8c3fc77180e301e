"""Tries uses of PyTorch's kernels on this machine, in a process that may die.

That process is `trial`. A check that ends it rules its use out, and another process goes on after
it.
"""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pjrt_bridge import child_processes, storage
from pjrt_bridge.runtime.compile.progress import working

SECONDS = 60.0
"""A process that writes nothing for so long hangs; all checks together may take longer."""

MODULE = "pjrt_bridge_cpu.aten.trial"
"""What the process runs."""

Findings = dict[str, str]
"""Why a use is not used, by its name; empty where it is."""


@dataclass(frozen=True)
class Probed:
    """The findings of a series of processes.

    Attributes:
        findings: by use; one that no process got to is absent.
        final: whether that need not be tried again.
    """

    findings: Findings
    final: bool


def probe(library: Path, *, seconds: float = SECONDS) -> Probed:
    """Try all uses in other processes."""
    with working("trying PyTorch's kernels, once for this machine"):
        return _probe(library, seconds)


def _probe(library: Path, seconds: float) -> Probed:
    found: Findings = {}
    first = 0
    while True:
        command = child_processes.command(MODULE, str(library), str(first))
        try:
            lines, status = _run(command, seconds)
        except OSError:
            return Probed(found, False)
        last = _take(found, lines)
        if status == 0:
            return Probed(found, last is None)
        # One that was killed by a signal died of the check that it had begun.
        if last is None or status is None or status > 0:
            return Probed(found, False)
        for use in last["uses"]:
            found[use] = f"{last['check']} ended its process with status {status}"
        first = last["index"] + 1


def _run(command: Sequence[str], seconds: float) -> tuple[list[bytes], int | None]:
    """What a process wrote, and its status; None where it was ended because it wrote nothing."""
    lines: list[bytes] = []
    late = threading.Event()
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=child_processes.environment({storage.FOLDER_VARIABLE: "off"}),
    ) as process:
        assert process.stdout is not None

        def end() -> None:
            late.set()
            process.kill()

        while True:
            watchdog = threading.Timer(seconds, end)
            watchdog.start()
            line = process.stdout.readline()
            if not line:
                break
            watchdog.cancel()
            lines.append(line)
        # One that has closed its output and does not end is ended, too.
        process.wait()
        watchdog.cancel()
    return lines, None if late.is_set() else process.returncode


def _take(found: Findings, lines: Sequence[bytes]) -> dict[str, Any] | None:
    """Add what a process wrote; the check that it began and did not end."""
    begun = None
    for line in lines:
        try:
            said = json.loads(line)
        except ValueError:
            continue
        if "reason" not in said:
            begun = said
            continue
        begun = None
        for use in said["uses"]:
            # One wrong case rules a use out.
            found[use] = found.get(use, "") or said["reason"]
    return begun
