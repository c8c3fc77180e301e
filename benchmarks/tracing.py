"""What the bridge adds to the time that Dynamo and AOTAutograd take to capture a model."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator

import torch
from transformers import LlamaConfig, LlamaModel

from benchmarks.figure import Figure
from pjrt_bridge.torch_interop import compiled_graphs

_LAYERS = 32
_ROUNDS = 3
"""At most: one takes a minute."""


def figures(rounds: int) -> Iterator[Figure]:
    """Placement and emission of a decoder, for inference and for a training step."""
    _begin()
    for training in (False, True):
        yield _figure(min(rounds, _ROUNDS), training=training)


def _begin() -> None:
    """What a process does once, and a machine: imports, and trying PyTorch's kernels."""
    layer = torch.compile(torch.nn.Linear(256, 256), backend="pjrt")
    with torch.no_grad():
        layer(torch.ones(64, 256))


def _figure(rounds: int, *, training: bool) -> Figure:
    torch.manual_seed(0)
    config = LlamaConfig(
        num_hidden_layers=_LAYERS,
        hidden_size=64,
        intermediate_size=128,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=128,
        use_cache=False,
    )
    model = LlamaModel(config)
    tokens = torch.randint(0, 128, (2, 16))
    found = [_compile(model, tokens, training=training) for _ in range(rounds)]
    lowering, capture, plugin = (statistics.median(times) for times in zip(*found, strict=True))
    kind = "a training step" if training else "inference"
    return Figure(
        f"lowering a decoder of {_LAYERS} layers for {kind}, in units of its capture",
        lowering / capture,
        0.2,
        "x",
        f"placement and emission {lowering:.1f} s, Dynamo and AOTAutograd {capture:.1f} s; the "
        f"plugin's compilation {plugin:.1f} s",
    )


def _compile(
    model: torch.nn.Module, tokens: torch.Tensor, *, training: bool
) -> tuple[float, float, float]:
    """Seconds of lowering, of torch's own capture, and of the plugin, in one compilation."""
    torch.compiler.reset()
    compiled = torch.compile(model, backend="pjrt", options={"fallback": "error"})

    def step() -> float:
        started = time.perf_counter()
        with torch.set_grad_enabled(training):
            hidden = compiled(tokens).last_hidden_state
        if training:
            hidden.square().mean().backward()
        return time.perf_counter() - started

    first, second = step(), step()
    graphs = compiled_graphs()
    lowering = sum(graph.lowering_seconds for graph in graphs)
    plugin = sum(graph.compile_seconds for graph in graphs)
    return lowering, first - second - lowering - plugin, plugin
