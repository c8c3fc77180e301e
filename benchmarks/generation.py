"""Generating text with transformers: time to the first token, tokens per second, programs.

    python -m benchmarks.generation --rounds 15 --cache dynamic

A decoder of 4 layers and width 128 with random weights goes on from a prompt, with a cache of fixed
size or one that grows: eagerly, compiled by Inductor, and compiled by the bridge, in turns.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks.figure import Figure

PROMPT, NEW = 16, 48
WAYS = ("eager", "inductor", "pjrt")
CACHES = ("static", "dynamic")


@dataclass
class Generated:
    """What one way of running the model took.

    Attributes:
        warm_up: seconds of the first call, which compiles.
        programs: compiled in it.
        first: seconds to the first token, of each round.
        steps: seconds of each further token, the median of each round.
    """

    warm_up: float = 0.0
    programs: int = 0
    first: list[float] = field(default_factory=list)
    steps: list[float] = field(default_factory=list)


class _Clock:
    """What `generate` gives its tokens to: when each came."""

    def __init__(self) -> None:
        self.times = [time.perf_counter()]

    def put(self, tokens: torch.Tensor) -> None:
        # The prompt comes first.
        self.times.append(time.perf_counter())

    def end(self) -> None:
        """Nothing is kept back."""


def _model(layers: int, width: int) -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=1000,
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=4,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=0,
    )
    return LlamaForCausalLM(config).eval()


def _compiled(way: str, model: Any, found: Generated) -> None:
    """Compile the forward pass, counting graphs."""

    def backend(graph: fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        found.programs += 1
        compile: Callable[..., Callable[..., Any]] = torch._dynamo.lookup_backend(way)
        return compile(graph, inputs)

    model.forward = torch.compile(model.forward, backend=backend)


def measure(
    rounds: int, layers: int = 4, width: int = 128, cache: str = "static"
) -> dict[str, Generated]:
    """Generate in turns; the first call of each way is not among the rounds.

    Raises:
        ValueError: two ways gave different tokens.
    """
    prompt = torch.randint(1, 1000, (1, PROMPT), generator=torch.Generator().manual_seed(1))
    found, calls = {}, {}
    for way in WAYS:
        model, found[way] = _model(layers, width), Generated()
        if way != "eager":
            _compiled(way, model, found[way])

        def call(clock: _Clock, model: Any = model) -> list[int]:
            tokens: list[int] = model.generate(
                prompt,
                attention_mask=torch.ones_like(prompt),
                max_new_tokens=NEW,
                do_sample=False,
                cache_implementation="static" if cache == "static" else None,
                streamer=clock,
            )[0].tolist()
            return tokens

        calls[way] = call
    expected: list[int] | None = None
    for turn in range(rounds + 1):
        at = turn % len(WAYS)
        for way in WAYS[at:] + WAYS[:at]:
            clock = _Clock()
            tokens = calls[way](clock)
            if expected is not None and tokens != expected:
                raise ValueError(f"{way} gave {tokens}, expected {expected}")
            expected = tokens
            start, _, first, *later = clock.times
            if turn == 0:
                found[way].warm_up = time.perf_counter() - start
            else:
                found[way].first.append(first - start)
                ends = [first, *later]
                found[way].steps.append(
                    statistics.median(b - a for a, b in zip(ends, later, strict=False))
                )
    return found


def figures(rounds: int) -> Iterator[Figure]:
    """A step of `generate` beside Inductor's."""
    found = measure(rounds)
    steps = {way: statistics.median(item.steps) for way, item in found.items()}
    sides = ", ".join(f"{way} {seconds * 1e6:.0f} us" for way, seconds in steps.items())
    yield Figure(
        "a step of generate, beside Inductor", steps["pjrt"] / steps["inductor"], 1.0, "x", sides
    )


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--cache", choices=CACHES, default=CACHES[0])
    arguments = parser.parse_args()
    print(f"{'':10}{'first token':>14}{'tokens/s':>12}{'programs':>10}{'first call':>13}")
    for way, item in measure(arguments.rounds, cache=arguments.cache).items():
        first, step = statistics.median(item.first), statistics.median(item.steps)
        print(
            f"{way:10}{first * 1e3:11.2f} ms{1 / step:12.0f}{item.programs:10}"
            f"{item.warm_up:11.1f} s"
        )


if __name__ == "__main__":
    main()
