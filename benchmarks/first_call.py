"""The first minute: README's first program in processes of their own.

The first call traces, divides, lowers and compiles. The backends of PyTorch that are beside it
show how much of that is Dynamo and AOTAutograd (`aot_eager`, the floor), and what Inductor takes.
`python -m benchmarks.first_call [ROUNDS]` prints wall-clock and processor time of each.
"""

from __future__ import annotations

import os
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from benchmarks.figure import Figure
from benchmarks.processes import ROOT

_TIMED = """
import time
import torch

begun, worked = time.perf_counter(), time.process_time()
{program}
print(time.perf_counter() - begun, time.process_time() - worked)
"""
_WAYS = ("pjrt cold", "pjrt warm", "aot_eager", "inductor cold")
_COLD, _WARM = 4.0, 2.0
"""Seconds that are asked for."""


def figures(rounds: int) -> Iterator[Figure]:
    """Seconds of README's first program, without `import torch`, in turns with other backends."""
    medians = _medians(rounds)
    sides = ", ".join(
        f"{way} {one.seconds:.1f} s ({one.processor:.1f} s of processors)"
        for way, one in medians.items()
    )
    cold, warm = medians["pjrt cold"].seconds, medians["pjrt warm"].seconds
    yield Figure("README's first program, nothing kept", cold, _COLD, "s", sides)
    yield Figure("README's first program, again", warm, _WARM, "s", sides)


class Times(NamedTuple):
    """What one run of the program took, in seconds of the clock and of processors."""

    seconds: float
    processor: float


def _medians(rounds: int) -> dict[str, Times]:
    """Of each way, which take turns; each round begins with empty caches.

    Bytecode of Python's modules is there, as pip leaves it beside what it installs.
    """
    found: dict[str, list[Times]] = {way: [] for way in _WAYS}
    with _folder() as modules:
        for round in range(rounds + 1):
            with _folder() as folder:
                for way in _WAYS:
                    times = _times(way.split()[0], Path(folder), Path(modules))
                    # The first round writes the bytecode.
                    if round:
                        found[way].append(times)
    return {
        way: Times(*map(statistics.median, zip(*times, strict=True)))
        for way, times in found.items()
    }


def _folder() -> tempfile.TemporaryDirectory[str]:
    # What a run tries in the background writes files after the run has ended.
    return tempfile.TemporaryDirectory(prefix="benchmarks-", ignore_cleanup_errors=True)


def program() -> str:
    """README's first program."""
    text = (ROOT / "README.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    return next(code for code in blocks if 'backend="pjrt"' in code)


def _times(backend: str, folder: Path, modules: Path) -> Times:
    source = program().replace('backend="pjrt"', f'backend="{backend}"')
    done = subprocess.run(
        [sys.executable, "-c", _TIMED.format(program=source)],
        cwd=folder,
        env={
            **os.environ,
            # Not a package's name: Python would take the folder for it.
            "PJRT_BRIDGE_CACHE": str(folder / "kept programs"),
            "PJRT_BRIDGE_BACKGROUND": "on",
            "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
            "PYTHONDONTWRITEBYTECODE": "",
            "PYTHONPYCACHEPREFIX": str(modules),
        },
        capture_output=True,
        text=True,
        check=True,
    )
    return Times(*map(float, done.stdout.split()[-2:]))


def main(rounds: int) -> None:
    """Print the medians of each way, and their distance from the floor."""
    medians = _medians(rounds)
    floor = medians["aot_eager"]
    print(f"README's first program without `import torch`, medians of {rounds} rounds in turns")
    print(f"asked: at most {_COLD:.0f} s cold, {_WARM:.0f} s warm")
    for way, (seconds, processor) in medians.items():
        above = seconds - floor.seconds, processor - floor.processor
        print(
            f"{way:14} {seconds:6.2f} s, {processor:6.2f} s of processors; "
            f"above aot_eager {above[0]:+6.2f} s, {above[1]:+6.2f} s"
        )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 3)
