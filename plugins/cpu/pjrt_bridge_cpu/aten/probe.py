"""Which uses of PyTorch's kernels are right here, found out in a process that may die.

That process is `trial`. A check that ends it rules its use out, and another process goes on after
it. What comes of it is kept beside the compile cache, for this build of the plugin and of PyTorch,
this processor and this number of cores.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import threading
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from pjrt_bridge import child_processes, storage
from pjrt_bridge.runtime.compile.cache import Cache
from pjrt_bridge.runtime.compile.identity import library_hash, processor
from pjrt_bridge.runtime.compile.progress import working
from pjrt_bridge_cpu.aten import library as torch_library

SECONDS = 60.0
"""A process that takes longer hangs."""

MODULE = "pjrt_bridge_cpu.aten.trial"
"""What the process runs."""

_FORMAT = "4"
_LIMIT = 1_000_000

_lock = threading.Lock()
_known: dict[Path, Findings] = {}

Findings = dict[str, str]
"""Why a use is not used, by its name; empty where it is."""


@dataclass(frozen=True)
class Probed:
    """What a series of processes found.

    Attributes:
        findings: by use; one that no process got to is absent.
        final: whether that need not be tried again.
    """

    findings: Findings
    final: bool


def is_usable(library: Path, use: str) -> bool:
    """Whether a use was found right for a build of the plugin; tried now where nothing is known."""
    return findings(library).get(use, "nobody tried it") == ""


def findings(library: Path) -> Findings:
    """What is known for a build of the plugin; tried now where nothing is."""
    with _lock:
        known = _known.get(library)
        if known is None:
            known = _known[library] = _kept(library)
        return known


def _kept(library: Path) -> Findings:
    folder = storage.cache_folder("aten")
    if folder is None:
        return probe(library).findings
    store, key = Cache(folder, _LIMIT), _key(library)
    found = _read(store.get(key))
    if found is None:
        probed = probe(library)
        found = probed.findings
        if probed.final:
            store.put(key, json.dumps(found).encode())
    return found


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
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=seconds,
                check=False,
                env=child_processes.environment({storage.FOLDER_VARIABLE: "off"}),
            )
        except subprocess.TimeoutExpired as error:
            _take(found, error.stdout or b"")
            return Probed(found, False)
        except OSError:
            return Probed(found, False)
        last = _take(found, done.stdout)
        if done.returncode == 0:
            return Probed(found, last is None)
        # One that was killed by a signal died of the check that it had begun.
        if last is None or done.returncode > 0:
            return Probed(found, False)
        for use in last["uses"]:
            found[use] = f"{last['check']} ended its process with status {done.returncode}"
        first = last["index"] + 1


def _take(found: Findings, output: bytes) -> dict[str, Any] | None:
    """Add what a process wrote; the check that it began and did not end."""
    begun = None
    for line in output.splitlines():
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


def _read(data: bytes | None) -> Findings | None:
    """Findings as they were written, or None where these are none."""
    try:
        found = json.loads(data or b"")
    except ValueError:
        return None
    if not isinstance(found, dict) or not all(isinstance(item, str) for item in found.values()):
        return None
    return found


def _key(library: Path) -> str:
    affinity = getattr(os, "sched_getaffinity", None)
    cores = os.cpu_count() or 1 if affinity is None else len(affinity(0))
    torch = torch_library.library()
    # Its half a gigabyte takes longer to read than the checks.
    written = "" if torch is None else f"{torch.stat().st_size} {torch.stat().st_mtime_ns}"
    parts = (
        _FORMAT,
        library_hash(library),
        written,
        processor(),
        str(cores),
        os.environ.get("XLA_FLAGS", ""),
        *_versions(),
    )
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


@cache
def _versions() -> tuple[str, ...]:
    return tuple(map(metadata.version, ("pjrt-bridge", "pjrt-bridge-cpu", "jaxlib", "torch")))
