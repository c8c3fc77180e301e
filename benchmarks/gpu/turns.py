"""Measuring a work: its sides take turns, each in its process, and only one is timed at a time.

A process stays from work to work, because imports and a client take longer than most programs to
compile. One that dies is started again for the next work.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.gpu.results import Measured, Result, read_json, write_json
from benchmarks.gpu.works import LANES, OURS, Work
from benchmarks.processes import Missing, Process

_READY = 240.0
"""Seconds in which a side has to be ready, at most."""
_CALLS = 60.0
"""Seconds for an answer after that."""
_ALLOWED = {"f32": 1e-5, "f32 high": 1e-3, "bf16": 1e-2, "autocast": 2e-3}
"""Relative errors that are allowed, or twice that of eager PyTorch on the device, if it is more."""
_UNKNOWN = 5
"""Times as much is allowed where eager PyTorch gave no result."""
_SPIN = 0.01
"""Seconds between turns."""


@dataclass(frozen=True)
class Settings:
    """How to measure.

    Attributes:
        device: type of PyTorch's device: "cuda", or "cpu" for a rehearsal.
        plugin: name of the plugin.
        platforms: of JAX.
        disk: a folder for caches, results and logs.
        deadline: on the clock of time.monotonic(), when all has to be over.
        rounds: samples of each side, at most.
        sample: seconds that a sample lasts about.
        budget: seconds that the rounds of a work may take.
    """

    device: str
    plugin: str
    platforms: str
    disk: Path
    deadline: float
    rounds: int = 9
    sample: float = 0.1
    budget: float = 5.0

    def left(self) -> float:
        """Seconds until the deadline."""
        return self.deadline - time.monotonic()

    def patience(self, limit: float) -> float:
        """Seconds to wait for an answer."""
        return max(1.0, min(limit, self.left()))


class Processes:
    """Processes of the sides. End with their context."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._running: dict[str, Process] = {}

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._running:
            # Each may take some seconds.
            with ThreadPoolExecutor(len(self._running)) as pool:
                list(pool.map(self.drop, list(self._running)))

    def get(self, name: str) -> Process:
        """The process of a side."""
        if name not in self._running:
            self._running[name] = start(self._settings, name, self._settings.disk / "caches")
        return self._running[name]

    def drop(self, name: str) -> None:
        """End the process of a side."""
        if name in self._running:
            self._running.pop(name).close()


def start(settings: Settings, name: str, caches: Path) -> Process:
    """A new process of a side, which keeps what it compiles in these folders."""
    caches.mkdir(parents=True, exist_ok=True)
    return Process(
        environment={
            "HF_HUB_OFFLINE": "1",
            "PJRT_BRIDGE_PLUGIN": settings.plugin,
            "PJRT_BRIDGE_CACHE": str(caches / "pjrt_bridge"),
            "TORCHINDUCTOR_CACHE_DIR": str(caches / name.replace(" ", "_")),
            "JAX_COMPILATION_CACHE_DIR": str(caches / "jax"),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "JAX_PLATFORMS": settings.platforms,
            "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
            # PyTorch's own sides are measured without the bridge's device.
            **({} if name in OURS else {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}),
        },
        module="benchmarks.gpu.worker",
        log=settings.disk / f"{name}.log",
    )


class Turns:
    """The sides of one work."""

    def __init__(
        self, work: Work, sides: Iterable[str], settings: Settings, processes: Processes
    ) -> None:
        self._work = work
        self._settings = settings
        self._processes = processes
        self._sides = {name: Measured() for name in work.sides if name in set(sides)}
        self._right: NDArray[np.float32] | None = None
        self._counts: dict[str, int] = {}
        self._reason = ""

    def measure(self) -> Result:
        """All rounds, and the comparison of results."""
        if self._work.start:
            self._start()
        else:
            self._prepare()
            self._compare()
            self._rounds()
        return Result(self._work, self._sides, self._counts, self._reason)

    # -- making ready --------------------------------------------------------------------------

    def _prepare(self) -> None:
        """Make all models at a time; then compile, in lanes."""
        with ThreadPoolExecutor(len(self._sides) + 1) as pool:
            reference = pool.submit(self._compute)
            list(pool.map(self._make, self._sides))
            lanes = [[name for name in lane if name in self._there()] for lane in LANES]
            list(pool.map(self._compile, lanes))
            reference.result()

    def _make(self, name: str) -> None:
        with self._noting(name):
            self._ask(name, "make", _READY, **self._named(name))

    def _named(self, name: str) -> dict[str, Any]:
        return {"work": asdict(self._work), "side": name, "device": self._settings.device}

    def _compile(self, lane: Sequence[str]) -> None:
        for name in lane:
            with self._noting(name):
                found = self._ask(name, "first", _READY, results=self._file(name))
                self._sides[name].first = found["seconds"]

    def _file(self, name: str) -> str:
        return str(self._settings.disk / f"{name}.npy")

    def _compute(self) -> None:
        """What is right; kept, because it is the same in all forms."""
        path = self._settings.disk / f"{self._work.key}.npy"
        counts = path.with_suffix(".json")
        try:
            if not counts.exists():
                process = self._processes.get("reference")
                request = {"work": asdict(self._work), "results": str(path)}
                patience = self._settings.patience(_READY)
                found = process.ask("reference", patience=patience, **request)
                write_json(counts, found)
            self._counts = read_json(counts)
            self._right = np.load(path)
        except Missing as missing:
            self._processes.drop("reference")
            self._reason = f"no results in full precision: {missing.reason}"

    # -- comparing -----------------------------------------------------------------------------

    def _compare(self) -> None:
        for name, side in self._sides.items():
            if side.status == "measured":
                found = np.load(self._file(name))
                side.error = None if self._right is None else error(found, self._right)
        eager = self._sides.get("eager", Measured()).error
        least = _ALLOWED[self._work.form]
        allowed = _UNKNOWN * least if eager is None else max(least, 2 * eager)
        for side in self._sides.values():
            # An error that is not a number is not within what is allowed, either.
            side.wrong = side.error is not None and not side.error <= allowed

    # -- rounds --------------------------------------------------------------------------------

    def _rounds(self) -> None:
        waits = ["untimed", "each"] if self._work.task == "dispatch" else ["end"]
        for wait in waits:
            seconds: dict[str, float] = {}
            for name in self._there():
                with self._noting(name):
                    self._time(name, 2, wait)
                    seconds[name] = max(self._time(name, 3, wait), 1e-7)
            sample = self._settings.sample
            repeats = {name: max(1, min(2000, round(sample / s))) for name, s in seconds.items()}
            spent = sum(s * (1 + repeats[name]) for name, s in seconds.items())
            fitting = max(3, int(self._settings.budget / max(spent, 1e-9)))
            for turn in range(min(self._settings.rounds, fitting)):
                names = self._there()
                random.Random(turn).shuffle(names)
                for name in names:
                    with self._noting(name):
                        time.sleep(_SPIN)
                        self._time(name, 1, wait)
                        found = self._time(name, repeats[name], wait)
                        side = self._sides[name]
                        (side.waited if wait == "each" else side.samples).append(found)

    def _time(self, name: str, repeats: int, wait: str) -> float:
        """Seconds of a call."""
        found: float = self._ask(name, "time", _CALLS, repeats=repeats, wait=wait)["seconds"]
        return found / repeats

    # -- first calls ---------------------------------------------------------------------------

    def _start(self) -> None:
        """The first call, in a process that finds nothing compiled, and in the next one."""
        for name, side in self._sides.items():
            with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as caches:
                for kept in (False, True):
                    with self._noting(name), start(self._settings, name, Path(caches)) as process:
                        patience = self._settings.patience(_READY)
                        process.ask("make", patience=patience, **self._named(name))
                        found = process.ask("first", patience=patience, results=self._file(name))
                        process.ask("time", patience=patience, repeats=3, wait="end")
                        if kept:
                            side.again = found["seconds"]
                            side.memory = process.ask("memory", patience=patience)
                        else:
                            side.first = found["seconds"]

    # -- all -----------------------------------------------------------------------------------

    def _ask(self, name: str, do: str, limit: float, **request: Any) -> dict[str, Any]:
        process = self._processes.get(name)
        return process.ask(do, patience=self._settings.patience(limit), **request)

    def _there(self) -> list[str]:
        return [name for name, side in self._sides.items() if side.status == "measured"]

    def _noting(self, name: str) -> _Noting:
        return _Noting(self._sides[name], self._processes, name, self._settings)


class _Noting:
    """Notes that a side gives no number, and ends its process, which may be in any state."""

    def __init__(self, side: Measured, processes: Processes, name: str, settings: Settings) -> None:
        self._side = side
        self._processes = processes
        self._name = name
        self._settings = settings

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> bool:
        if isinstance(error, Missing):
            self._side.status, self._side.reason = error.status, error.reason
            if self._settings.left() <= 0:
                self._side.status, self._side.reason = "absent", "no time was left"
            self._processes.drop(self._name)
            return True
        return False


def error(found: NDArray[np.float32], right: NDArray[np.float32]) -> float:
    """The norm of the difference in units of the norm of what is right."""
    if found.shape != right.shape:
        raise ValueError(f"results of shape {found.shape}, expected {right.shape}")
    difference = found.astype(np.float64) - right
    return float(np.linalg.norm(difference) / max(float(np.linalg.norm(right)), 1e-30))
