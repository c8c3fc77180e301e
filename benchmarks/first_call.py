"""The first minute: README's first program in processes of their own.

The first call traces, divides, lowers and compiles. The backends of PyTorch that are beside it
show how much of that is Dynamo and AOTAutograd (`aot_eager`), and what Inductor takes.
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

from benchmarks.figure import Figure
from benchmarks.processes import ROOT

_TIMED = """
import time
import torch

begun = time.perf_counter()
{program}
print(time.perf_counter() - begun)
"""
_COLD, _WARM = 4.0, 2.0
"""Seconds that are asked for."""


def figures(rounds: int) -> Iterator[Figure]:
    """Seconds of README's first program, without `import torch`, in turns with other backends."""
    ways = ("pjrt cold", "pjrt warm", "aot_eager", "inductor cold")
    found: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(rounds):
        with tempfile.TemporaryDirectory(prefix="benchmarks-") as folder:
            for way in ways:
                found[way].append(_seconds(way.split()[0], Path(folder)))
    medians = {way: statistics.median(seconds) for way, seconds in found.items()}
    sides = ", ".join(f"{way} {seconds:.1f} s" for way, seconds in medians.items())
    yield Figure("README's first program, nothing kept", medians["pjrt cold"], _COLD, "s", sides)
    yield Figure("README's first program, again", medians["pjrt warm"], _WARM, "s", sides)


def program() -> str:
    """README's first program."""
    text = (ROOT / "README.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    return next(code for code in blocks if 'backend="pjrt"' in code)


def _seconds(backend: str, folder: Path) -> float:
    source = program().replace('backend="pjrt"', f'backend="{backend}"')
    done = subprocess.run(
        [sys.executable, "-c", _TIMED.format(program=source)],
        cwd=folder,
        env={
            **os.environ,
            "PJRT_BRIDGE_CACHE": str(folder / "pjrt_bridge"),
            "PJRT_BRIDGE_BACKGROUND": "on",
            "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
        },
        capture_output=True,
        text=True,
        check=True,
    )
    return float(done.stdout.split()[-1])
