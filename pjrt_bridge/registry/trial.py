"""Plugins that nobody vouches for are tried in a process of their own before they are used.

A vendor's client may end the process where the vendor's device is missing, and an API table cannot
say so. So a plugin that was found in a vendor's wheel, or is given by the path of its library, is
first loaded by another process (`trial_process`), which creates a client with the same options,
lists its devices and closes it. A package that brings a plugin through a hook vouches for it.

What came of it is kept beside the compile cache, under a key of the library's contents, the
options, the environment variables that such libraries read, and the machine. A good outcome is kept
for good, another one for a while. The variable `PJRT_BRIDGE_TRIAL` turns trials off.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from pjrt_bridge import child_processes, environment, storage
from pjrt_bridge.abi.values import NamedValue
from pjrt_bridge.errors import PluginNotFound
from pjrt_bridge.registry.spec import PluginSpec
from pjrt_bridge.runtime.compile.cache import Cache
from pjrt_bridge.runtime.compile.identity import library_hash
from pjrt_bridge.runtime.compile.progress import working
from pjrt_bridge.versions import version

VARIABLE = "PJRT_BRIDGE_TRIAL"
"""`off`: nothing is tried."""

SECONDS = 120.0
"""A trial that takes longer hangs."""

MODULE = "pjrt_bridge.registry.trial_process"
"""What the process runs."""

FOLDER = "trials"
"""Where outcomes are kept, in the cache folder."""

_KEPT = {"good": float("inf"), "refused": 60.0, "died": 600.0, "hung": 3600.0}
"""Seconds for which an outcome holds: what cost nothing is soon tried again."""

_COSTLY = 5.0
"""Seconds from which on a refusal is told from what is kept, and not had again in this process."""

_VARIABLES = ("LD_LIBRARY_PATH", "LD_PRELOAD", "XLA_FLAGS")
_FORMAT = "2"
_LIMIT = 1_000_000

_lock = threading.RLock()
_known: dict[str, Outcome] = {}
_proven: set[Path] = set()


@dataclass(frozen=True)
class Outcome:
    """The outcome of a trial.

    Attributes:
        fate: "good"; "refused", which is an error that the plugin or the bridge raised; "died", the
            process ended; "hung", it did not come to an end.
        stage: what was under way last: "load", "client" or "close".
        reason: what the plugin said, on one line; empty for a good outcome.
        ended: how the process ended, in words; empty where it ended well.
        time: when it was tried, in seconds since 1970.
        seconds: how long it took.
    """

    fate: str
    stage: str
    reason: str
    ended: str
    time: float
    seconds: float

    @property
    def kept(self) -> float:
        """Seconds for which it holds: a refusal that took long holds for a minute per second."""
        return _KEPT[self.fate] * (self.seconds if self.costly else 1)

    @property
    def holds(self) -> bool:
        """Whether it is recent enough."""
        return 0 <= time.time() - self.time < self.kept or self.fate == "good"

    @property
    def costly(self) -> bool:
        """Whether the plugin took long to refuse."""
        return self.fate == "refused" and self.seconds > _COSTLY

    @property
    def final(self) -> bool:
        """Whether to do the same in this process could end it, or would only take long again."""
        return self.fate in ("died", "hung") or self.costly


def applies(spec: PluginSpec, *, vouched: bool) -> bool:
    """Whether a plugin is one that is tried, and has not yet given a client to this process."""
    if vouched or spec.path is None or environment.is_off(VARIABLE):
        return False
    return spec.path.is_file() and spec.path.resolve() not in _proven


def known(spec: PluginSpec, options: Mapping[str, NamedValue]) -> Outcome | None:
    """What came of a trial with these create options; None where it is to be made (again)."""
    key = _key(spec, options)
    with _lock:
        found = _known.get(key)
    if found is None:
        store = _store()
        found = None if store is None else _read(store.get(key))
    return found if found is not None and found.holds else None


def outcome(spec: PluginSpec, options: Mapping[str, NamedValue]) -> Outcome | None:
    """What came of a trial, made now where it is not known; None where no process can be started.

    Args:
        spec: a plugin with a library.
        options: create options of the client.
    """
    with _lock:
        found = known(spec, options)
        if found is not None:
            return found
        what = (
            f"trying plugin {spec.name!r} in a process of its own, once for its library, for "
            f"{SECONDS:.0f} s at most"
        )
        with working(what, in_files=True):
            found = _try(spec, options)
        if found is not None:
            key, store = _key(spec, options), _store()
            _known[key] = found
            if store is not None:
                store.put(key, json.dumps(asdict(found)).encode())
        return found


def check(
    spec: PluginSpec, options: Mapping[str, NamedValue], *, vouched: bool, stage: str = ""
) -> None:
    """Refuse a plugin that would end this process, or refuse after long; it is tried where needed.

    Args:
        spec: the plugin.
        options: create options of the client.
        vouched: a package's hook brought it.
        stage: only what happens there counts; empty for all that happens.

    Raises:
        PluginNotFound: its trial died, hung or was refused after long; the text says why, and what
            to do.
    """
    if not applies(spec, vouched=vouched):
        return
    found = outcome(spec, options)
    if found is None or not found.final or stage not in ("", found.stage):
        return
    doing = {"load": "it was loaded", "client": "a client was made", "close": "it was closed"}
    why = f"{found.reason.rstrip('.')}. It" if found.reason else "it"
    ended = found.ended or f"was refused after {found.seconds:.0f} s"
    raise PluginNotFound(
        f"plugin {spec.name!r} is not used on this machine: {why} {ended} when "
        f"{doing[found.stage]}, in a trial in a process of its own; the next trial is after "
        f"{found.kept / 60:.0f} minutes, when {spec.path} changes, or after `pjrt-bridge "
        f"cache --clear`; {VARIABLE}=off goes without trials"
    )


def prove(spec: PluginSpec) -> None:
    """State that a plugin has given this process a client, so it need not be tried any more."""
    if spec.path is not None:
        _proven.add(spec.path.resolve())


def forget() -> None:
    """Forget what this process knows of trials; what is kept in files stays."""
    with _lock:
        _known.clear()
        _proven.clear()


def _try(spec: PluginSpec, options: Mapping[str, NamedValue]) -> Outcome | None:
    request = {
        "name": spec.name,
        "library": str(spec.path),
        "options": dict(options),
        "environment": dict(spec.environment),
    }
    command = child_processes.command(MODULE, json.dumps(request))
    started, begun = time.time(), time.monotonic()
    # Files and not pipes: what the plugin starts may keep these open after the process has died.
    with tempfile.TemporaryFile() as answers, tempfile.TemporaryFile() as errors:
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=answers,
                stderr=errors,
                env=child_processes.environment({storage.FOLDER_VARIABLE: "off", VARIABLE: "off"}),
                # A group of its own: what the plugin starts goes with it.
                start_new_session=True,
            )
        except OSError:
            return None
        try:
            status: int | None = process.wait(SECONDS)
        except subprocess.TimeoutExpired:
            status = None
        finally:
            with suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        answers.seek(0)
        errors.seek(0)
        stage, reason = _answers(answers.read())
        words = child_processes.last_words(errors.read().decode(errors="replace"))
    seconds = time.monotonic() - begun
    if stage == "":
        # It did not even get to the plugin, which says nothing about it.
        return None
    if status is None:
        ended = f"did not come to an end in {SECONDS:.0f} s"
        return Outcome("hung", stage, words, ended, started, seconds)
    if reason is not None:
        return Outcome("refused", stage, reason, "", started, seconds)
    if stage == "done":
        return Outcome("good", stage, "", "", started, seconds)
    return Outcome("died", stage, words, child_processes.ended(status), started, seconds)


def _answers(output: bytes) -> tuple[str, str | None]:
    """The last stage that began, and why it was refused."""
    stage, reason = "", None
    for line in output.splitlines():
        with suppress(ValueError):
            said = json.loads(line)
            stage, reason = said["stage"], said.get("reason")
    return stage, reason


def _store() -> Cache | None:
    folder = storage.cache_folder(FOLDER)
    return None if folder is None else Cache(folder, _LIMIT)


def _read(data: bytes | None) -> Outcome | None:
    """An outcome as it was written; None where this is none."""
    try:
        found = Outcome(**json.loads(data or b""))
    except (ValueError, TypeError):
        return None
    texts = (found.fate, found.stage, found.reason, found.ended)
    if found.fate not in _KEPT or not all(isinstance(text, str) for text in texts):
        return None
    times = (found.time, found.seconds)
    return found if all(isinstance(number, float) for number in times) else None


def _key(spec: PluginSpec, options: Mapping[str, NamedValue]) -> str:
    assert spec.path is not None  # Only libraries are tried.
    if storage.is_off():
        # For this process alone; hashing half a gigabyte takes longer than most trials.
        state = spec.path.stat()
        library = f"{spec.path.resolve()} {state.st_size} {state.st_mtime_ns}"
    else:
        library = library_hash(spec.path)
    read = {
        name: value
        for name, value in os.environ.items()
        if name in _VARIABLES or name in spec.environment or name.endswith("VISIBLE_DEVICES")
    }
    parts = [
        _FORMAT,
        version("pjrt-bridge"),
        library,
        sorted(options.items()),
        sorted(read.items()),
        # Home folders are shared by machines with and without devices.
        platform.node(),
    ]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()
