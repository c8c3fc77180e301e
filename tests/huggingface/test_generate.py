"""`generate` with every kind of cache and search: the same tokens as eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import CompileConfig, DynamicCache, GenerationConfig
from transformers.cache_utils import Cache, QuantizedLayer

from pjrt_bridge.torch_interop import compiled_graphs, hf
from tests.huggingface.helpers import gemma2, gpt2, llama, mistral, on_host

pytestmark = pytest.mark.usefixtures("fresh")

NEW = 10
PROMPTS = torch.tensor([[0, 0, 0, 17, 8, 61], [5, 33, 70, 12, 96, 2]])
INPUTS = {"inputs": PROMPTS, "attention_mask": (PROMPTS != 0).long()}
ONE = {"inputs": PROMPTS[1:], "attention_mask": torch.ones(1, 6, dtype=torch.long)}


def by_forward(model: Any) -> dict[str, Any]:
    model.forward = torch.compile(model.forward, backend="pjrt")
    return {}


def by_compile(model: Any) -> dict[str, Any]:
    model.compile(backend="pjrt")
    return {}


STATIC = {"cache_implementation": "static"}


def check(
    make: Callable[[], Any], way: Callable[[Any], dict[str, Any]], inputs: Any, **arguments: Any
) -> None:
    """Generate twice, and compare with eager."""
    given = {"max_new_tokens": NEW, "do_sample": False, **arguments}
    eager, model = make(), make()
    torch.manual_seed(3)
    expected = eager.generate(**inputs, **given)
    compiled = way(model)
    for _ in range(2):
        torch.manual_seed(3)
        assert model.generate(**inputs, **given, **compiled).tolist() == expected.tolist()
    assert not on_host()


@pytest.mark.parametrize("way", [by_forward, pytest.param(by_compile, marks=pytest.mark.slow)])
def test_static_cache(way: Callable[[Any], dict[str, Any]]) -> None:
    check(llama, way, INPUTS, **STATIC)
    assert len(compiled_graphs()) == 2  # of the prompt, and of each step


@pytest.mark.slow
def test_a_configuration_for_generation() -> None:
    """Its mode is "reduce-overhead", and what is compiled are the steps after the prompt."""
    hf.setup()
    config = GenerationConfig(
        max_new_tokens=NEW,
        cache_implementation="static",
        compile_config=CompileConfig(backend="pjrt"),
    )
    expected = llama().generate(**INPUTS, max_new_tokens=NEW, do_sample=False)
    model = llama()
    for _ in range(2):
        assert model.generate(**INPUTS, generation_config=config).tolist() == expected.tolist()
    assert not on_host()
    assert len(compiled_graphs()) == 1


@pytest.mark.parametrize("make", [pytest.param(mistral, marks=pytest.mark.slow), gemma2])
def test_sliding_windows(make: Callable[[], Any]) -> None:
    check(make, by_forward, INPUTS, **STATIC)


SEARCHES = {
    "beams": {"num_beams": 3},
    "sampling": {"do_sample": True, "temperature": 0.8, "top_k": 20, "top_p": 0.9},
    "penalties": {"repetition_penalty": 1.3, "no_repeat_ngram_size": 2},
    "beams that sample": {"num_beams": 2, "do_sample": True},
}


@pytest.mark.parametrize(
    "search", ["beams", *(pytest.param(name, marks=pytest.mark.slow) for name in [*SEARCHES][1:])]
)
def test_searches(search: str) -> None:
    check(llama, by_forward, INPUTS, **STATIC, **SEARCHES[search])


def test_dynamic_cache() -> None:
    check(llama, by_forward, INPUTS, max_new_tokens=4)


@pytest.mark.slow
@pytest.mark.parametrize("make", [gpt2, mistral, gemma2])
@pytest.mark.parametrize("search", ["greedy", "beams", "sampling"])
def test_dynamic_caches(make: Callable[[], Any], search: str) -> None:
    check(make, by_forward, INPUTS, max_new_tokens=5, **SEARCHES.get(search, {}))


@pytest.mark.slow
@pytest.mark.parametrize("make", [mistral, gemma2])
def test_prompts_longer_than_the_window_share_programs(make: Callable[[], Any]) -> None:
    """What a window keeps of a prompt has strides of the prompt's length."""
    eager, model = make(), make()
    by_forward(model)
    counts = []
    for length in (10, 16, 13, 20):
        prompt = torch.randint(3, 97, (1, length))
        given = {"max_new_tokens": 20, "do_sample": False}
        assert model.generate(prompt, **given).tolist() == eager.generate(prompt, **given).tolist()
        counts.append(len(compiled_graphs()))
    assert counts[0] <= 8
    assert counts[1] - counts[0] <= 2
    assert counts[-1] - counts[1] <= 1
    assert not on_host()


@pytest.mark.slow
@pytest.mark.parametrize("how", ["a model", "the prompt"])
def test_assisted_decoding(how: str) -> None:
    given = {"assistant_model": gpt2()} if how == "a model" else {"prompt_lookup_num_tokens": 2}
    if how == "a model":
        given["assistant_model"].forward = torch.compile(
            given["assistant_model"].forward, backend="pjrt"
        )
    check(llama, by_forward, ONE, max_new_tokens=5, **given)


class EightBits(QuantizedLayer):
    """Keys and values as signed bytes, each row with a scale; transformers' own need packages."""

    def _quantize(self, tensor: torch.Tensor, axis: int) -> tuple[torch.Tensor, torch.Tensor]:
        scale = tensor.abs().amax(dim=-1, keepdim=True).clamp(min=1e-6) / 127
        return (tensor / scale).round().to(torch.int8), scale

    def _dequantize(self, quantized: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        values, scale = quantized
        return values.to(scale.dtype) * scale


@pytest.mark.slow
def test_quantized_cache() -> None:
    def generate(model: Any) -> list[list[int]]:
        layers = [EightBits(nbits=8, residual_length=3) for _ in range(1)]
        found: torch.Tensor = model.generate(
            **INPUTS, max_new_tokens=5, do_sample=False, cache=Cache(layers=layers)
        )
        return found.tolist()

    model = llama()
    by_forward(model)
    assert generate(model) == generate(llama())
    assert not on_host()


@pytest.mark.slow
def test_a_cache_goes_on() -> None:
    """A conversation: what was generated is the prefix of the next prompt."""

    def talk(model: Any) -> list[list[int]]:
        cache = DynamicCache(config=model.config)
        tokens = PROMPTS[1:]
        for _ in range(2):
            tokens = model.generate(tokens, cache=cache, max_new_tokens=4, do_sample=False)
            tokens = torch.cat([tokens, PROMPTS[1:, :3]], dim=1)
        return tokens.tolist()

    model = llama()
    by_forward(model)
    assert talk(model) == talk(llama())
