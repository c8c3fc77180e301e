"""Networks that cases share: random weights, no download.

Each function gives a module in evaluation mode and its inputs, and imports what it needs when it is
called.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.case import Asked, Case, TorchWork

Network = tuple[Any, tuple[Any, ...]]

SHORT = {"float32": "f32", "bfloat16": "bf16"}
"""Element types as the names of cases spell them."""


def network_case(
    name: str, network: Callable[[str], Network], dtype: str, asked: Sequence[Asked] = ()
) -> Case:
    """Inference of a network in one element type, by all that run PyTorch's modules."""

    def torch() -> TorchWork:
        return TorchWork(*network(dtype))

    return Case(
        f"{name}, {SHORT[dtype]}",
        ("eager", "inductor", "pjrt", "torch_xla"),
        torch,
        asked=tuple(asked),
    )


def gpt2_block(dtype: str = "float32", batch: int = 4, tokens: int = 512) -> Network:
    """A block of GPT-2 small; gives the hidden states alone."""
    import torch
    from transformers import GPT2Config
    from transformers.models.gpt2.modeling_gpt2 import GPT2Block

    class Block(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block = GPT2Block(GPT2Config(attn_implementation="sdpa"), layer_idx=0)

        def forward(self, hidden: torch.Tensor) -> torch.Tensor:
            found = self.block(hidden)
            states: torch.Tensor = found[0] if isinstance(found, tuple) else found
            return states

    torch.manual_seed(0)
    kind = getattr(torch, dtype)
    return Block().eval().to(kind), (torch.randn(batch, tokens, 768).to(kind),)


def gpt2(
    dtype: str = "float32", batch: int = 1, tokens: int = 128, layers: int = 12, width: int = 768
) -> Network:
    """GPT-2 with its head; GPT-2 small unless told otherwise."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(n_layer=layers, n_embd=width, n_head=width // 64, use_cache=False)
    model = GPT2LMHeadModel(config).eval().to(getattr(torch, dtype))
    return model, (torch.randint(0, config.vocab_size, (batch, tokens)),)


def bert(
    dtype: str = "float32", batch: int = 2, tokens: int = 128, layers: int = 12, width: int = 768
) -> Network:
    """BERT; BERT base unless told otherwise."""
    import torch
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    config = BertConfig(
        num_hidden_layers=layers,
        hidden_size=width,
        num_attention_heads=width // 64,
        intermediate_size=4 * width,
    )
    model = BertModel(config).eval().to(getattr(torch, dtype))
    return model, (torch.randint(0, config.vocab_size, (batch, tokens)),)


def resnet50(dtype: str = "float32", batch: int = 4, side: int = 224) -> Network:
    """ResNet-50 with its classifier."""
    import torch
    from transformers import ResNetConfig, ResNetForImageClassification

    torch.manual_seed(0)
    kind = getattr(torch, dtype)
    model = ResNetForImageClassification(ResNetConfig(num_labels=1000)).eval().to(kind)
    return model, (torch.randn(batch, 3, side, side).to(kind),)
