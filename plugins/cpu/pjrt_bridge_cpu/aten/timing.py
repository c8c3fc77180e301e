"""The process that measures what calls of PyTorch's kernels gain over XLA's own code.

`python -m pjrt_bridge_cpu.aten.timing LIBRARY` reads what is known of uses (`probe.Findings`) as
JSON, and prints the ratios (`gains`). Each of `loads` is made a program with the call and one
without. They take turns, and medians of processor time are compared: the process runs beside the
program whose kernels it measures, whose threads have the cores. It has one core itself: threads
that wait for the next part of a call would be counted otherwise.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

import torch

from pjrt_bridge import registry
from pjrt_bridge.dtypes import DType
from pjrt_bridge.errors import PjrtBridgeError
from pjrt_bridge.runtime import Client, Plugin
from pjrt_bridge.stablehlo import Program
from pjrt_bridge_cpu.aten import gains, loads, outcomes
from pjrt_bridge_cpu.aten import library as torch_library
from pjrt_bridge_cpu.aten.calls import Load
from pjrt_bridge_cpu.aten.checks import TriedUse
from pjrt_bridge_cpu.aten.rules import UsableKernels
from pjrt_bridge_cpu.aten.trial import array, lowered
from pjrt_bridge_cpu.thin_products import can_multiply_thin

SECONDS = 60.0
"""Of processor time, after which nothing more is measured."""

_ROUNDS = 5
_SAMPLE = 3e-3
"""Seconds of a sample; shorter calls are repeated."""

_CLEAR = 3
"""How many times slower a side is that is not measured again."""

Clock = Callable[[], float]


class _OneKind(UsableKernels):
    """Emits the calls of one kind, wherever they are right.

    Attributes:
        met: the load and the element type of the last such call.
    """

    def __init__(self, kind: str, usable: Collection[str]) -> None:
        super().__init__(usable.__contains__)
        self._kind = kind
        self.met: tuple[Load, DType] | None = None

    def pays(self, load: Load | None, dtype: DType, *, unmeasured: bool = True) -> bool:
        if load is None or load.kind != self._kind:
            return False
        self.met = load, dtype
        return True

    def prefers(self, load: Load, other: Load, dtype: DType, *, unmeasured: bool) -> bool:
        return load.kind == self._kind


class Timing:
    """Measures kinds on a client.

    Args:
        client: of the CPU plugin, which knows the custom call.
        usable: names of the uses that are right.
        clock: seconds of processor time.
    """

    def __init__(
        self, client: Client, usable: Collection[str], clock: Clock = time.process_time
    ) -> None:
        self._client = client
        self._own = can_multiply_thin(client)
        self._usable = usable
        self._clock = clock

    def ratios(self, seconds: float = SECONDS) -> dict[str, dict[int, float]]:
        """By kind with its element type, and by size."""
        found: dict[str, dict[int, float]] = {}
        end = self._clock() + seconds
        for kind, use in loads.measured():
            if self._clock() > end:
                break
            measured = self.measure(kind, use)
            if measured is not None:
                name, size, ratio = measured
                found.setdefault(name, {})[size] = ratio
        return found

    def measure(self, kind: str, use: TriedUse) -> tuple[str, int, float] | None:
        """Name, size and ratio of a use; None where it is no call, or cannot run."""
        results = use.expected()
        only = _OneKind(kind, self._usable)
        called = lowered(use, results, only, self._own)
        if only.met is None:
            return None
        try:
            sides = [self._run(use, program) for program in (called, lowered(use, results, None))]
            with_call, without = self._medians(sides)
        except PjrtBridgeError:
            return None
        load, dtype = only.met
        return gains.name_of(load, dtype), load.size, round(with_call / without, 3)

    def _run(self, use: TriedUse, program: Program) -> Callable[[], None]:
        executable = self._client.compile(program)
        buffers = [self._client.put(array(tensor)) for tensor in use.tensors]

        def run() -> None:
            _, end = executable.submit(buffers)
            end.wait()

        return run

    def _medians(self, sides: Sequence[Callable[[], None]]) -> list[float]:
        first = [self._first(run) for run in sides]
        if max(first) > _CLEAR * min(first):
            return first
        repeats = [max(1, int(_SAMPLE / seconds)) for seconds in first]
        samples: list[list[float]] = [[] for _ in sides]
        for turn in range(_ROUNDS):
            for index in (0, 1) if turn % 2 else (1, 0):
                started = self._clock()
                for _ in range(repeats[index]):
                    sides[index]()
                samples[index].append((self._clock() - started) / repeats[index])
        return [max(statistics.median(one), 1e-9) for one in samples]

    def _first(self, run: Callable[[], None]) -> float:
        """Seconds of the lesser of two calls after the first."""
        run()
        times = []
        for _ in range(2):
            started = self._clock()
            run()
            times.append(self._clock() - started)
        return max(min(times), 1e-6)


def _stay_on_one_core() -> None:
    """Have no second thread in the pools that are made from now on."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    torch.set_num_threads(1)


def main(arguments: Sequence[str]) -> None:
    """Measure with the library whose path is given, or what is shipped as right, to ship it."""
    ships = list(arguments) == ["--ship"]
    library = registry.load("cpu").library if ships else Path(*arguments)
    assert library is not None
    _stay_on_one_core()
    known = (outcomes.shipped(library) or {}) if ships else json.load(sys.stdin)
    usable = {use for use, reason in known.items() if not reason}
    client = Plugin.load(library, name="cpu").client({"cpu_device_count": 1})
    ratios = {} if torch_library.connect(client) else Timing(client, usable).ratios()
    key = gains.key_of(library)
    if ships and ratios and key is not None:
        gains.ship(key, ratios)
    print(gains.written(ratios), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
