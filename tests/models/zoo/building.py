"""What every model of the zoo is made from: small configurations, random weights, fixed inputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import transformers
from torch import nn

from tests.models.zoo.scale import grown, long, side

Made = tuple[nn.Module, dict[str, Any]]
"""A model, and what it is called with."""

Builder = Callable[[], Made]

WORDS = 61
"""Size of every vocabulary."""

NAMES = {
    "vocab_size": WORDS,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 32,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
"""A small model in the names that most configurations use."""


def ids(length: int = 16, batch: int = 2, first: int = 3) -> torch.Tensor:
    """Tokens that are not special."""
    return torch.randint(first, WORDS, (batch, long(length)))


def text(length: int = 16) -> dict[str, torch.Tensor]:
    """Two sentences, the second of which is shorter and padded on the right."""
    tokens = ids(length)
    mask = torch.ones_like(tokens)
    tokens[1, -5:] = 0
    mask[1, -5:] = 0
    return {"input_ids": tokens, "attention_mask": mask}


def images(size: int = 32, channels: int = 3) -> torch.Tensor:
    """Two square images."""
    return torch.randn(2, channels, side(size), side(size))


def config(name: str, **values: Any) -> Any:
    """A configuration of transformers, in which nothing is left to chance."""
    return determined(getattr(transformers, f"{name}Config")(**grown(values)))


def determined(found: Any) -> Any:
    """A configuration, and those inside it, with every probability of dropping something at 0."""
    for key, value in list(vars(found).items()):
        if isinstance(value, transformers.PretrainedConfig):
            determined(value)
        elif isinstance(value, float) and ("drop" in key or key.endswith("_time_prob")):
            setattr(found, key, 0.0)
    return found


def model(kind: str, found: Any) -> nn.Module:
    """A model of transformers by the name of its class."""
    made = getattr(transformers, kind)(found)
    if getattr(made, "loss_type", None) is None:
        # Otherwise it logs in its forward function, which breaks the graph.
        made.loss_type = "ForCausalLM"
    return made


def lively(made: nn.Module) -> nn.Module:
    """The model with weights that all matter: initial ones make attention even and gates shut."""
    with torch.no_grad():
        for weight in made.parameters():
            if not weight.requires_grad or not weight.is_floating_point():
                continue
            if weight.dim() < 2:
                weight.add_(torch.randn_like(weight), alpha=0.1)
            else:
                fan_in = max(weight[0].numel(), 1)
                weight.copy_(torch.randn_like(weight) / fan_in**0.5)
    return made
