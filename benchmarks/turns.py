"""Measuring a case: its competitors take turns, each in its process, and only one runs at a time.

Machines are shared and noisy, so times of separate runs say nothing. In each round every competitor
is timed once, after a call that is not timed; the order changes from round to round. One that dies,
or that is not there, is reported as that, and the others go on.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.case import Case, Measure
from benchmarks.competitors import WARM, competitor
from benchmarks.processes import Missing, Process
from benchmarks.results import Outcome, Result

_FEWEST = 3
"""Rounds of a case, however long its calls take."""
_FRESH = 2
"""Rounds, at most, where each sample takes a process of its own."""
_SPIN = 0.01
"""Seconds between turns: the threads of PyTorch and XLA keep their cores for some milliseconds."""
_MEMORY_CALLS = 3


@dataclass(frozen=True)
class Settings:
    """How to measure.

    Attributes:
        rounds: samples of each competitor, at most.
        sample: seconds that one of them lasts about; a call that is shorter is repeated.
        budget: seconds that the rounds of a case may take; longer calls get fewer rounds.
        interpreters: by name ("jax", "torch_xla"), of competitors that have their own.
        without: competitors that are not wanted.
    """

    rounds: int = 45
    sample: float = 0.02
    budget: float = 6.0
    interpreters: Mapping[str, str] = field(default_factory=dict)
    without: frozenset[str] = frozenset()


_TRIAL = """
from pjrt_bridge import registry
from pjrt_bridge_cpu.aten import findings
findings.main([str(registry.load("cpu").library)])
"""


def try_kernels(disk: Path) -> None:
    """Try and measure the kernels that the CPU plugin's package calls, for processes of a disk.

    Else the first of them does so in the background, on a processor that the package does not know.
    """
    subprocess.run(
        [sys.executable, "-c", _TRIAL],
        env={**os.environ, **_kept_on(disk)},
        stdout=subprocess.DEVNULL,
        check=True,
    )


def _kept_on(disk: Path) -> dict[str, str]:
    return {"PJRT_BRIDGE_CACHE": str(disk / "pjrt_bridge")}


class Turns:
    """The competitors of one case.

    Args:
        family: of the case.
        case: to measure.
        settings: how.
        disk: a folder of this run, for what competitors compile and later cases may need again.
    """

    def __init__(self, family: str, case: Case, settings: Settings, disk: Path) -> None:
        self._family = family
        self._case = case
        self._settings = settings
        self._disk = disk
        names = [name for name in case.competitors if name not in settings.without]
        self._samples: dict[str, list[float]] = {name: [] for name in names}
        self._missing: dict[str, Missing] = {}
        self._peak: dict[str, int] = {}

    def measure(self) -> Result:
        """All rounds of the case."""
        _MEASURES[self._case.measure](self)
        outcomes = {
            name: Outcome(status=self._missing[name].status, reason=self._missing[name].reason)
            if name in self._missing
            else Outcome(tuple(samples), peak=self._peak.get(name))
            for name, samples in self._samples.items()
        }
        measure = self._case.measure
        return Result(
            self._case.name,
            self._family,
            measure.value,
            measure.unit,
            outcomes,
            # What is not wanted is not asked for, either.
            tuple(
                asked for asked in self._case.asked if not _names(asked) & self._settings.without
            ),
        )

    # -- calls ---------------------------------------------------------------------------------

    def _calls(self) -> None:
        with ExitStack() as stack:
            processes = self._prepared(stack)
            seconds = {}
            for name, process in processes.items():
                with self._noting(name):
                    # Twice, because some things are compiled, or read, at the second call.
                    process.ask("time", repeats=2)
                    seconds[name] = max(process.ask("time", repeats=1)["seconds"], 1e-7)
            repeats = {
                name: max(1, round(self._settings.sample / once)) for name, once in seconds.items()
            }
            # A call that is not timed comes before each sample.
            spent = sum(once * (1 + repeats[name]) for name, once in seconds.items())
            fitting = int(self._settings.budget / max(spent, 1e-9))
            for turn in range(min(self._settings.rounds, max(_FEWEST, fitting))):
                for name in self._order(turn, processes):
                    with self._noting(name):
                        time.sleep(_SPIN)
                        processes[name].ask("time", repeats=1)
                        found = processes[name].ask("time", repeats=repeats[name])
                        self._samples[name].append(found["seconds"] / repeats[name])
            for name in self._order(0, processes):
                with self._noting(name):
                    self._peak[name] = processes[name].ask("memory", repeats=1)["bytes"]

    def _prepared(self, stack: ExitStack) -> Mapping[str, Process]:
        """Processes that have compiled; as many at a time as there are cores."""
        processes: dict[str, Process] = {}
        for name in self._samples:
            with self._noting(name):
                processes[name] = stack.enter_context(self._start(name, self._disk))

        def prepare(name: str) -> None:
            with self._noting(name):
                processes[name].ask("prepare", case=self._case.name, competitor=name)
                processes[name].ask("time", repeats=1)

        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(prepare, processes))
        return processes

    # -- first calls, and memory ---------------------------------------------------------------

    def _starts(self) -> None:
        for turn in range(min(self._settings.rounds, _FRESH)):
            with tempfile.TemporaryDirectory(dir=self._disk) as empty:
                # What a warm process finds, the cold one before it has left.
                for name in sorted(self._order(turn, self._samples), key=lambda name: WARM in name):
                    disk = Path(empty) / name.removesuffix(WARM)
                    self._sample_fresh(name, disk, _first_call)

    def _peaks(self) -> None:
        for turn in range(min(self._settings.rounds, _FRESH)):
            for name in self._order(turn, self._samples):
                self._sample_fresh(name, self._disk, _peak)

    def _sample_fresh(self, name: str, disk: Path, sample: Callable[[Process], float]) -> None:
        with self._noting(name), self._start(name, disk) as process:
            process.ask("prepare", case=self._case.name, competitor=name)
            self._samples[name].append(sample(process))

    # -- both ----------------------------------------------------------------------------------

    def _start(self, name: str, disk: Path) -> Process:
        """A process that keeps what it compiles on this disk."""
        disk.mkdir(parents=True, exist_ok=True)
        which = competitor(name).interpreter
        if which is not None and which not in self._settings.interpreters:
            raise Missing("absent", f"no interpreter was named by --{which.replace('_', '-')}")
        interpreter = None if which is None else self._settings.interpreters[which]
        return Process(
            interpreter,
            {
                **competitor(name).environment,
                "HF_HUB_OFFLINE": "1",
                **_kept_on(disk),
                "TORCHINDUCTOR_CACHE_DIR": str(disk / "inductor"),
                "JAX_PLATFORMS": "cpu",
                "PJRT_DEVICE": "CPU",
            },
        )

    def _order(self, turn: int, names: Iterable[str]) -> list[str]:
        """Who is still there, in an order that is another one in each round."""
        order = [name for name in names if name not in self._missing]
        random.Random(turn).shuffle(order)
        return order

    def _noting(self, name: str) -> _Noting:
        return _Noting(self._missing, name)


class _Noting:
    """Notes that a competitor gives no number, instead of passing that on."""

    def __init__(self, missing: dict[str, Missing], name: str) -> None:
        self._missing = missing
        self._name = name

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> bool:
        if isinstance(error, Missing):
            self._missing.setdefault(self._name, error)
            return True
        return False


def _first_call(process: Process) -> float:
    seconds: float = process.ask("time", repeats=1)["seconds"]
    return seconds


def _peak(process: Process) -> float:
    process.ask("time", repeats=2)
    found: int = process.ask("memory", repeats=_MEMORY_CALLS)["bytes"]
    return found


def _names(asked: Any) -> set[str]:
    return {asked.competitor, *asked.against}


_MEASURES: Mapping[Measure, Callable[[Turns], None]] = {
    Measure.CALL: Turns._calls,
    Measure.START: Turns._starts,
    Measure.MEMORY: Turns._peaks,
}
