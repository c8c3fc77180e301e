"""Serving a language model: requests come and go, and the same programs compute them together.

transformers' continuous batching keeps keys and values in pages of one cache and packs the tokens
of all requests, prompts and single steps alike, into one row. With the row and what is read of the
cache padded to one size each, every batch has the same shapes: what is compiled in the warm-up is
all.

    python -m examples.serving
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from transformers import (
    CompileConfig,
    ContinuousBatchingConfig,
    GenerationConfig,
    LlamaConfig,
    LlamaForCausalLM,
)

from pjrt_bridge.torch_interop import compiled_graphs

VOCABULARY = 512
ROW = 64
"""Tokens of a batch: prompts are cut into parts that fit, and each running request has one."""
CONTEXT = 1024
"""Tokens of the cache, of all requests together. Each batch reads as many, most of them masked."""
PAGE = 16


@dataclass(frozen=True)
class Served:
    """What became of the requests.

    Attributes:
        tokens: the new tokens of each request.
        seconds: from the first request to the last token.
        programs: compiled before the first request, and by the end.
    """

    tokens: list[list[int]]
    seconds: float
    programs: tuple[int, int]


def model(width: int = 64, layers: int = 2) -> LlamaForCausalLM:
    """A small decoder with random weights."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=0,
    )
    return LlamaForCausalLM(config).eval()


def requests(count: int = 16) -> list[list[int]]:
    """Prompts of different lengths."""
    generator = torch.Generator().manual_seed(1)
    lengths = torch.randint(2, 40, (count,), generator=generator).tolist()
    return [
        torch.randint(1, VOCABULARY, (length,), generator=generator).tolist() for length in lengths
    ]


def serve(model: LlamaForCausalLM, prompts: Sequence[list[int]], new: Sequence[int]) -> Served:
    """Generate greedily for all prompts, which are added while others run.

    Args:
        model: whose forward pass the backend compiles.
        prompts: tokens.
        new: how many tokens each gets.
    """
    batching = ContinuousBatchingConfig(
        page_size=PAGE,
        num_blocks=CONTEXT // PAGE,
        max_batch_tokens=ROW,
        q_padding_interval_size=ROW,
        kv_padding_interval_size=CONTEXT,
        max_requests_per_batch=ROW,
        varlen_compile_config=CompileConfig(backend="pjrt"),
    )
    generation = GenerationConfig(do_sample=False, eos_token_id=-1, pad_token_id=0)
    with model.continuous_batching_context_manager(
        generation, continuous_batching_config=batching
    ) as manager:
        warm = len(compiled_graphs())
        started = time.perf_counter()
        names = []
        for prompt, count in zip(prompts, new, strict=True):
            names.append(manager.add_request(prompt, max_new_tokens=count))
            time.sleep(0.005)
        tokens: dict[str, list[int]] = {}
        while len(tokens) < len(names):
            result = manager.get_result(timeout=1)
            if result is not None and result.is_finished():
                tokens[result.request_id] = result.generated_tokens
            elif not manager.is_running():
                raise RuntimeError("the thread that generates ended")
        seconds = time.perf_counter() - started
    return Served([tokens[name] for name in names], seconds, (warm, len(compiled_graphs())))


def alone(
    model: LlamaForCausalLM, prompts: Sequence[list[int]], new: Sequence[int]
) -> list[list[int]]:
    """The same tokens, one request after the other and without compiling."""
    return [
        model.generate(torch.tensor([prompt]), max_new_tokens=count, do_sample=False)[
            0, len(prompt) :
        ].tolist()
        for prompt, count in zip(prompts, new, strict=True)
    ]


def main() -> None:
    """Serve 16 requests, and compare them with eager generation."""
    prompts = requests()
    new = [8 + index % 9 for index in range(len(prompts))]
    expected = alone(model(), prompts, new)
    served = serve(model(), prompts, new)
    before, after = served.programs
    print(f"{len(prompts)} requests, {sum(new)} tokens in {served.seconds:.2f} s")
    print(f"programs: {before} after the warm-up, {after - before} more while serving")
    print(
        "the tokens are eager's" if served.tokens == expected else "the tokens differ from eager's"
    )


if __name__ == "__main__":
    main()
