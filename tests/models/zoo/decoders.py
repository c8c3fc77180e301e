"""Language models that predict the next token."""

from __future__ import annotations

from typing import Any

from tests.models.zoo.building import NAMES, Builder, Made, config, model, text

GROUPED = {"num_key_value_heads": 2, "head_dim": 8}
"""Four heads of queries on two of keys and values."""

SLIDING = {"sliding_window": 6, "layer_types": ["sliding_attention", "full_attention"]}

EXPERTS = {"num_experts_per_tok": 2, "num_local_experts": 4, "moe_intermediate_size": 24}

WIDE = {
    "length": 64,
    "max_position_embeddings": 64,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 1,
    "num_key_value_heads": 2,
}
"""Large enough for calls of PyTorch's kernels."""

HEADS = {"GPT2": "GPT2LMHeadModel", "Gemma3Text": "Gemma3ForCausalLM"}
"""Classes that are not called as the others."""


def settings(name: str, **values: Any) -> Any:
    """The configuration of a small decoder."""
    return config(name, **{**NAMES, "use_cache": False, **values})


def causal(name: str, *, length: int = 16, **values: Any) -> Builder:
    """A decoder with its loss, on padded text."""

    def build() -> Made:
        made = model(HEADS.get(name, f"{name}ForCausalLM"), settings(name, **values))
        inputs = text(length)
        labels = inputs["input_ids"].masked_fill(inputs["attention_mask"] == 0, -100)
        return made, {**inputs, "labels": labels}

    return build


MODELS: dict[str, Builder] = {
    "gpt2": causal("GPT2"),
    "llama": causal("Llama", **GROUPED),
    "llama-wide": causal("Llama", **WIDE),
    "mistral": causal("Mistral", **GROUPED, sliding_window=6),
    "qwen2": causal("Qwen2", num_key_value_heads=2),
    "qwen3": causal("Qwen3", **GROUPED),
    "gemma2": causal("Gemma2", **GROUPED, **SLIDING, query_pre_attn_scalar=8),
    "gemma3": causal("Gemma3Text", **GROUPED, **SLIDING, query_pre_attn_scalar=8),
    "phi3": causal("Phi3", num_key_value_heads=2),
    "gpt-neox": causal("GPTNeoX"),
    "opt": causal("OPT", ffn_dim=48, word_embed_proj_dim=32),
    "bloom": causal("Bloom"),
    "falcon": causal("Falcon", ffn_hidden_size=48),
    "mixtral": causal("Mixtral", **GROUPED, **EXPERTS),
    "qwen3-moe": causal("Qwen3Moe", **GROUPED, **EXPERTS),
    "olmo2": causal("Olmo2"),
    "cohere": causal("Cohere", num_key_value_heads=2),
    "mamba": causal("Mamba", state_size=4, time_step_rank=4),
    "mamba2": causal("Mamba2", state_size=4, num_heads=8, head_dim=8, n_groups=2, chunk_size=8),
    "rwkv": causal("Rwkv", length=6, attention_hidden_size=32, context_length=8),
}
