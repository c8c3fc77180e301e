"""Findings: which uses of PyTorch's kernels are right on this machine, and what calls gain.

They are looked for in this order: what this process knows, what is kept beside the compile cache,
what the package ships (`outcomes`, `gains`), and what `probe` tries and `timing` measures in other
processes. Those take from seconds to minutes. They work in the background, once for a machine,
while programs are compiled without calls of the kernels, and then by the rules' least sizes alone.
`on_change` tells of each answer, and such programs are compiled again and replaced. With
`PJRT_BRIDGE_BACKGROUND=off` the first program waits for them.

`python -m pjrt_bridge_cpu.aten.findings LIBRARY` is the process in the background. It goes on when
the process that started it ends, if there is a folder to keep what it finds.
"""

from __future__ import annotations

import atexit
import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

from pjrt_bridge import child_processes, environment, storage, versions
from pjrt_bridge.runtime.compile.cache import Cache
from pjrt_bridge.runtime.compile.identity import library_hash, processor
from pjrt_bridge.runtime.compile.progress import DELAY
from pjrt_bridge_cpu.aten import gains, is_always, outcomes, probe
from pjrt_bridge_cpu.aten import library as torch_library
from pjrt_bridge_cpu.aten.gains import Ratios
from pjrt_bridge_cpu.aten.probe import Findings
from pjrt_bridge_cpu.aten.processor import cores

MODULE = "pjrt_bridge_cpu.aten.findings"
"""What the process in the background runs."""

_FORMAT = "8"
_GAINS_FORMAT = f"gains {gains.FORMAT}"
_TIMING = "pjrt_bridge_cpu.aten.timing"
_SECONDS = 600.0
"""A process that measures for so long hangs."""

_ANSWERS = 2
"""Of a trial: what is right, and what it gains."""

_LIMIT = 1_000_000
_SAID = (
    "pjrt_bridge: PyTorch's kernels are tried on this processor in the background, once; programs "
    "that are compiled meanwhile do not call them until then"
)

_lock = threading.Lock()
_known: dict[Path, Findings] = {}
_gains: dict[Path, Ratios] = {}
_trials: dict[Path, BackgroundTrial] = {}


def is_usable(library: Path, use: str) -> bool:
    """Whether a use was found right for a build of the plugin, as far as is known by now."""
    return findings(library).get(use, "nobody tried it") == ""


def findings(library: Path) -> Findings:
    """The findings for a build of the plugin; none while it is being tried."""
    with _lock:
        if library in _known:
            return _known[library]
        if library not in _trials:
            known = _at_hand(library)
            if known is None and environment.is_off(environment.BACKGROUND_VARIABLE):
                known = find_out(library)
            if known is not None:
                return _known.setdefault(library, known)
            _trials[library] = BackgroundTrial(library)
        found = _trials[library].found
        if found is not None:
            _known[library] = found
            return found
        return _trials[library].meanwhile


def measured(library: Path) -> Ratios:
    """The gains of calls with a build of the plugin, as far as they were measured.

    What is shipped of an older format lacks some kinds: it serves until all are measured here.
    """
    if is_always():
        return {}
    with _lock:
        if library in _gains:
            return _gains[library]
        known = _kept_gains(library)
        shipped = gains.shipped(library)
        if known is None and shipped is not None and shipped.format == gains.FORMAT:
            known = shipped.ratios
        if known is None and environment.is_off(environment.BACKGROUND_VARIABLE):
            known = measure(library)
        if known is None:
            if library not in _trials:
                _trials[library] = BackgroundTrial(library)
            known = _trials[library].gains
        if known is not None:
            return _gains.setdefault(library, known)
        return {} if shipped is None else shipped.ratios


def version(library: Path) -> int:
    """How many answers came from the background since a program first asked."""
    with _lock:
        trial = _trials.get(library)
    return 0 if trial is None else trial.answers


def on_change(library: Path, since: int, told: Callable[[], None]) -> None:
    """Have a function called once, as soon as there are more answers than `since`.

    Never where nothing is being tried or measured for the library.
    """
    with _lock:
        trial = _trials.get(library)
    if trial is not None:
        trial.on_answer(since, told)


def measure(library: Path) -> Ratios:
    """Measure what right uses gain now, and keep it; nothing where that fails."""
    folder = storage.cache_folder("aten")
    if folder is None:
        return _measure(library, find_out(library)) or {}
    usable = _at_hand(library) or find_out(library)
    with _alone(folder):
        known = _kept_gains(library)
        if known is None:
            known = _measure(library, usable)
            if known is not None:
                Cache(folder, _LIMIT).put(
                    _key(library, _GAINS_FORMAT), gains.written(known).encode()
                )
        return known or {}


def _measure(library: Path, uses: Findings) -> Ratios | None:
    """What `timing` finds in a process of its own; None where it comes to no end."""
    if not uses:
        return None
    try:
        done = subprocess.run(
            child_processes.command(_TIMING, str(library)),
            input=json.dumps(uses).encode(),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=child_processes.environment({storage.FOLDER_VARIABLE: "off"}),
            timeout=_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return gains.read(done.stdout) if done.returncode == 0 else None


def find_out(library: Path) -> Findings:
    """Try all uses now, and keep the outcomes.

    Of several processes that come here at once one tries, and the others read what it kept.
    """
    folder = storage.cache_folder("aten")
    if folder is None:
        return probe.probe(library).findings
    with _alone(folder):
        known = _kept(library)
        if known is not None:
            return known
        probed = probe.probe(library)
        if probed.final:
            kept = json.dumps(probed.findings).encode()
            Cache(folder, _LIMIT).put(_key(library), kept)
        return probed.findings


class BackgroundTrial:
    """A process in the background that tries all uses, and then measures those that are right.

    Attributes:
        found: what it found; None while it works.
        gains: what it measured; None while it works.
        answers: how many of these are there.
        meanwhile: the shipped findings, which lack some of the uses that are tried.
    """

    def __init__(self, library: Path) -> None:
        self.meanwhile = outcomes.shipped(library) or {}
        self.found: Findings | None = None
        self.gains: Ratios | None = None
        self.answers = 0
        self._told: list[Callable[[], None]] = []
        self._telling = threading.Lock()
        try:
            # A session of its own: Ctrl-C ends the program at the terminal, and not what it began.
            self._process = subprocess.Popen(
                child_processes.command(MODULE, str(library)),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=child_processes.environment(),
                start_new_session=True,
            )
        except OSError:
            self.found, self.gains, self.answers = {}, {}, _ANSWERS
            return
        threading.Thread(target=self._wait, name="pjrt_bridge trial", daemon=True).start()
        atexit.register(self._leave)

    def _wait(self) -> None:
        said = threading.Timer(DELAY, self._say)
        said.daemon = True
        said.start()
        output = self._process.stdout
        assert output is not None
        self.found = _read(output.readline()) or {}
        said.cancel()
        self._tell()
        self.gains = gains.read(output.readline()) or {}
        self._tell()
        output.close()
        self._process.wait()
        atexit.unregister(self._leave)

    def on_answer(self, since: int, told: Callable[[], None]) -> None:
        """Have a function called once, as soon as there are more answers than `since`."""
        with self._telling:
            late = self.answers > since
            if not late and self.answers < _ANSWERS:
                self._told.append(told)
        if late:
            told()

    def _tell(self) -> None:
        """There is one more answer."""
        with self._telling:
            self.answers += 1
            waiting, self._told = self._told, []
        for told in waiting:
            told()

    def _say(self) -> None:
        if self.found is None and sys.stderr.isatty():
            print(_SAID, file=sys.stderr)

    def _leave(self) -> None:
        if storage.is_off():
            with suppress(OSError):
                self._process.kill()
            self._process.wait()
        elif self._process.returncode is None:
            # It ends by itself. `Popen` would warn that it is still running.
            self._process.returncode = 0


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """While no other process is here; without effect where locks or the folder cannot be used."""
    try:
        import fcntl

        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not storage.is_trusted(folder):
            raise OSError("others may write to the folder")
        file = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    except (ImportError, OSError):
        yield
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
    finally:
        os.close(file)


def _at_hand(library: Path) -> Findings | None:
    """The findings that are kept, or shipped of all uses."""
    known = _kept(library)
    if known is not None:
        return known
    shipped = outcomes.shipped(library)
    return shipped if shipped is not None and outcomes.is_of_all_uses(shipped) else None


def _kept_gains(library: Path) -> Ratios | None:
    folder = storage.cache_folder("aten")
    if folder is None:
        return None
    return gains.read(Cache(folder, _LIMIT).get(_key(library, _GAINS_FORMAT)) or b"")


def _kept(library: Path) -> Findings | None:
    folder = storage.cache_folder("aten")
    return None if folder is None else _read(Cache(folder, _LIMIT).get(_key(library)))


def _read(data: bytes | None) -> Findings | None:
    """Findings as they were written, or None where these are none."""
    try:
        found = json.loads(data or b"")
    except ValueError:
        return None
    if not isinstance(found, dict) or not all(isinstance(item, str) for item in found.values()):
        return None
    return found


def _key(library: Path, form: str = _FORMAT) -> str:
    torch = torch_library.library()
    # Its half a gigabyte takes longer to read than the checks.
    written = "" if torch is None else f"{torch.stat().st_size} {torch.stat().st_mtime_ns}"
    parts = (
        form,
        library_hash(library),
        written,
        processor(),
        str(cores()),
        os.environ.get("XLA_FLAGS", ""),
        *_versions(),
    )
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


@cache
def _versions() -> tuple[str, ...]:
    return tuple(map(versions.version, ("pjrt-bridge", "pjrt-bridge-cpu", "jaxlib", "torch")))


def main(arguments: Sequence[str]) -> None:
    """Find out and measure for the library whose path is given, and print a line of each."""
    library = Path(*arguments)
    with suppress(AttributeError, OSError):
        os.nice(10)
    with suppress(BrokenPipeError):
        print(json.dumps(_at_hand(library) or find_out(library)), flush=True)
        print(gains.written(measure(library)), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
