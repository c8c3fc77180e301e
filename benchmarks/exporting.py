"""What a saved model costs: seconds to load, memory beside its file, and a call."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from transformers import GPT2Config, GPT2LMHeadModel

import pjrt_bridge
from benchmarks.figure import Figure
from pjrt_bridge.torch_interop import export

_TOKENS = 32
_CALLS = 400


def figures(rounds: int) -> Iterator[Figure]:
    """Loading GPT-2 small with random weights, and running it once, in processes without torch."""
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config()).eval()
    tokens = torch.randint(0, 1000, (1, _TOKENS))
    with tempfile.TemporaryDirectory() as folder:
        export(model, (tokens,), {"use_cache": False}).save(folder)
        size = (Path(folder) / "weights.safetensors").stat().st_size
        runs = [_load(folder) for _ in range(rounds)]
    loading = statistics.median(run["loading"] for run in runs)
    compiling = statistics.median(run["compiling"] for run in runs)
    grown = statistics.median(run["grown"] for run in runs)
    yield Figure(
        "loading a saved GPT-2 small, beside compiling",
        loading,
        2.0,
        "s",
        f"importing, loading, checking and putting {size / 1e6:.0f} MB {loading:.2f} s, "
        f"compiling {compiling:.2f} s",
    )
    yield Figure(
        "memory of its own that it takes until its first result, of its weights",
        grown / size,
        0.5,
        "x",
        f"anonymous memory grew by {grown / 1e6:.0f} MB; a copy of the weights would be "
        f"{size / 1e6:.0f} MB",
    )
    yield _call(rounds)


def _call(rounds: int) -> Figure:
    """A small exported model on a NumPy array, beside the same by `torch.compile` on a tensor."""
    model, x = torch.nn.Linear(8, 8).eval(), torch.randn(2, 8)
    array = x.numpy()
    compiled = torch.compile(model, backend="pjrt")
    with export(model, (x,)).load_on(pjrt_bridge.client()) as loaded, torch.no_grad():
        sides = (lambda: np.asarray(loaded(array)), lambda: compiled(x))
        taken: tuple[list[float], list[float]] = ([], [])
        for _ in range(_CALLS * rounds):
            for side, times in zip(sides, taken, strict=True):
                started = time.perf_counter()
                side()
                times.append(time.perf_counter() - started)
    exported, beside = map(statistics.median, taken)
    return Figure(
        "a call of a small saved model, of torch.compile's",
        exported / beside,
        2.0,
        "x",
        f"{1e6 * exported:.0f} us until NumPy has the result, {1e6 * beside:.0f} us by the "
        "compiled function",
    )


def _load(folder: str) -> dict[str, float]:
    """What a process measured that loaded the model and ran it."""
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, folder, str(_TOKENS)],
        capture_output=True,
        text=True,
        check=True,
    )
    found: dict[str, float] = json.loads(done.stdout)
    return found


_PROGRAM = """
import json, sys, time

started = time.perf_counter()
import numpy as np
import pjrt_bridge
from pjrt_bridge.exported import ExportedModel

def anonymous():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("RssAnon")) * 1024

client = pjrt_bridge.client()
before = anonymous()
loaded = ExportedModel.load(sys.argv[1]).load_on(client)
for name in loaded.names:
    loaded.weight(name)
loading = time.perf_counter() - started
loaded.compile()
compiling = time.perf_counter() - started - loading
loaded(np.ones((1, int(sys.argv[2])), np.int64))["logits"].to_numpy()
print(json.dumps({"loading": loading, "compiling": compiling, "grown": anonymous() - before}))
"""
