"""Small models with random weights, a tokenizer, and what was compiled."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    BertConfig,
    Gemma2Config,
    Gemma2ForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedTokenizerFast,
)

from pjrt_bridge.torch_interop import compiled_graphs

WORDS = [
    *("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"),
    *("the", "a", "cat", "dog", "sat", "ran", "on", "mat", "home", "and", "fast"),
]

_SIZES: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "bos_token_id": 1,
    "eos_token_id": None,
    "pad_token_id": 0,
}


def llama(layers: int = 1) -> LlamaForCausalLM:
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(num_hidden_layers=layers, **_SIZES)).eval()


def mistral() -> MistralForCausalLM:
    """Each layer looks at a window of 8 tokens."""
    torch.manual_seed(0)
    config = MistralConfig(num_hidden_layers=1, sliding_window=8, **_SIZES)
    return MistralForCausalLM(config).eval()


def gemma2() -> Gemma2ForCausalLM:
    """One layer looks at a window of 8 tokens, one at all."""
    torch.manual_seed(0)
    config = Gemma2Config(num_hidden_layers=2, sliding_window=8, head_dim=8, **_SIZES)
    return Gemma2ForCausalLM(config).eval()


def gpt2(vocabulary: int = 97) -> GPT2LMHeadModel:
    torch.manual_seed(0)
    return GPT2LMHeadModel(gpt2_config(vocabulary)).eval()


def gpt2_config(vocabulary: int = 97, **more: Any) -> GPT2Config:
    """One layer; without an end of text, so that all texts grow as long as asked."""
    return GPT2Config(
        vocab_size=vocabulary,
        n_embd=32,
        n_layer=1,
        n_head=4,
        n_positions=64,
        bos_token_id=1,
        eos_token_id=None,
        pad_token_id=0,
        **more,
    )


def bert(head: Any, **config: Any) -> Any:
    """A head of `transformers.Bert*` on one layer, over the tokenizer's words."""
    torch.manual_seed(0)
    sizes = BertConfig(
        vocab_size=len(WORDS),
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=32,
        **config,
    )
    return head(sizes).eval()


def tokenizer() -> PreTrainedTokenizerFast:
    """One token for each of the words."""
    vocabulary = {word: index for index, word in enumerate(WORDS)}
    made = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(
        tokenizer_object=made,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
    )


def on_host(but: Iterable[str] = ()) -> list[str]:
    """What of the compiled graphs PyTorch runs, and why; asserts that anything was compiled.

    Args:
        but: operators that do not count.
    """
    graphs = compiled_graphs()
    assert graphs
    return [
        f"{graph.kind}: {reason.operator}: {reason.reason}"
        for graph in graphs
        for segment in graph.segments
        for reason in segment.fallback_reasons
        if reason.operator not in but
    ]


def furthest(found: torch.nn.Module, expected: torch.nn.Module) -> float:
    """The largest difference between the parameters of two models."""
    pairs = zip(found.parameters(), expected.parameters(), strict=True)
    return max(float((ours - theirs).detach().abs().max()) for ours, theirs in pairs)
