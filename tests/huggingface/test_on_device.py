"""Models on the device: caches that grow there, and batches that transformers packs."""

from __future__ import annotations

import pytest
import torch
from transformers import ContinuousBatchingConfig, GenerationConfig

from pjrt_bridge.torch_interop import compiled_graphs
from tests.huggingface.helpers import llama, on_host

pytestmark = pytest.mark.usefixtures("fresh")


def test_dynamic_cache() -> None:
    """The cache stays padded on the device from step to step, and steps share their programs."""
    expected, model = llama(), llama().to("pjrt")
    model.forward = torch.compile(model.forward, backend="pjrt")
    for length in (6, 9):
        prompt = torch.randint(3, 97, (2, length))
        given = {"max_new_tokens": 10, "do_sample": False}
        found = model.generate(prompt.to("pjrt"), **given)
        assert found.tolist() == expected.generate(prompt, **given).tolist()
    assert not on_host()
    assert len(compiled_graphs()) <= 6


def test_continuous_batching() -> None:
    prompts = [torch.randint(3, 97, (length,)).tolist() for length in (3, 9, 5)]
    generation = GenerationConfig(
        max_new_tokens=3, do_sample=False, eos_token_id=-1, pad_token_id=0
    )
    batching = ContinuousBatchingConfig(
        page_size=8, num_blocks=8, max_batch_tokens=32, max_requests_per_batch=32
    )
    tokens = []
    for device in ("cpu", "pjrt"):
        results = (
            llama()
            .to(device)
            .generate_batch(
                prompts,
                generation_config=generation,
                continuous_batching_config=batching,
                progress_bar=False,
            )
        )
        by_prompt = {tuple(each.prompt_ids): each.generated_tokens for each in results.values()}
        tokens.append([by_prompt[tuple(prompt)] for prompt in prompts])
    assert tokens[0] == tokens[1]
    assert all(len(each) == 3 for each in tokens[0])
