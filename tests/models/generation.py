"""Greedy generation with a cache of keys and values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import transformers

from tests.models import zoo

PROMPT = 5
NEW = 8


def generate(name: str, wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> torch.Tensor:
    """The tokens that a decoder goes on with: one call for the prompt, then one for each token.

    The cache is as large as it will be from the start, so there are two graphs and no more.
    """
    torch.manual_seed(0)
    model, inputs = zoo.build(name)
    model.eval()
    config = model.config
    cache = transformers.StaticCache(config=config, max_cache_len=PROMPT + NEW)
    tokens = inputs["input_ids"][:, :PROMPT]
    found = [tokens]
    position = torch.arange(PROMPT)
    function = wrap(model)
    with torch.no_grad():
        for _ in range(NEW):
            result = function(
                input_ids=tokens,
                past_key_values=cache,
                use_cache=True,
                cache_position=position,
                position_ids=position.unsqueeze(0),
            )
            tokens = result["logits"][:, -1:].argmax(-1)
            found.append(tokens)
            position = position[-1:] + 1
    return torch.cat(found, dim=1)
