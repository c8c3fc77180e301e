"""What the next process saves because this one kept what it compiled."""

from __future__ import annotations

import os
import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch
from transformers import GPT2Config, GPT2LMHeadModel

from benchmarks.figure import Figure
from pjrt_bridge.storage import FOLDER_VARIABLE
from pjrt_bridge.torch_interop import compiled_graphs

_LAYERS = 4
_ROUNDS = 3
"""At most: one takes half a minute."""


def figures(rounds: int) -> Iterator[Figure]:
    """Loading a model's programs beside compiling them, for a training step."""
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(n_layer=_LAYERS))
    tokens = torch.randint(0, 1000, (1, 128))
    cold, warm = [], []
    before = os.environ.get(FOLDER_VARIABLE)
    try:
        for _ in range(min(rounds, _ROUNDS)):
            with tempfile.TemporaryDirectory() as folder:
                os.environ[FOLDER_VARIABLE] = folder
                cold.append(_compile(model, tokens))
                stored = len(list(Path(folder).rglob("*.entry")))
                warm.append(_compile(model, tokens))
    finally:
        if before is None:
            del os.environ[FOLDER_VARIABLE]
        else:
            os.environ[FOLDER_VARIABLE] = before
    loading, compiling = statistics.median(warm), statistics.median(cold)
    yield Figure(
        f"loading what was compiled of GPT-2, {_LAYERS} layers, a training step",
        loading / compiling,
        0.1,
        "x",
        f"loading {loading:.2f} s, compiling and storing {stored} programs {compiling:.2f} s",
    )


def _compile(model: torch.nn.Module, tokens: torch.Tensor) -> float:
    """Seconds that the client took to compile or load the programs of a step."""
    torch.compiler.reset()
    model.zero_grad()
    compiled = torch.compile(model, backend="pjrt", options={"fallback": "error"})
    compiled(tokens, labels=tokens).loss.backward()
    return sum(graph.compile_seconds for graph in compiled_graphs())
