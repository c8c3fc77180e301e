"""Llamas of 7 and 70 billion parameters, for `pjrt-bridge plan`: their sizes, and a plan for both.

    pjrt-bridge plan examples/llama_plan.py:llama_7b --optimizer AdamW --estimate \
        --input input_ids=i64[16,2048] --input labels=i64[16,2048] \
        --topology v5p:2x2x4 --mesh fsdp=16 --mesh fsdp=4,tp=4 --mesh tp=16

Needs the package transformers; nothing is downloaded, and no weights are made.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel
from transformers import LlamaConfig, LlamaForCausalLM

PLAN: dict[str, ParallelStyle] = {
    "model.layers.*.self_attn.q_proj": ColwiseParallel(),
    "model.layers.*.self_attn.k_proj": ColwiseParallel(),
    "model.layers.*.self_attn.v_proj": ColwiseParallel(),
    "model.layers.*.self_attn.o_proj": RowwiseParallel(),
    "model.layers.*.mlp.gate_proj": ColwiseParallel(),
    "model.layers.*.mlp.up_proj": ColwiseParallel(),
    "model.layers.*.mlp.down_proj": RowwiseParallel(),
    "lm_head": ColwiseParallel(),
}


def llama(layers: int, **sizes: int) -> tuple[nn.Module, dict[str, ParallelStyle]]:
    """A Llama 2 of the width of the one with 7 billion parameters, unless sizes say otherwise."""
    config = LlamaConfig(num_hidden_layers=layers, use_cache=False, **sizes)
    return LlamaForCausalLM(config).to(torch.bfloat16), PLAN


def llama_7b() -> tuple[nn.Module, dict[str, ParallelStyle]]:
    """All 32 layers."""
    return llama(32)


def llama_70b() -> tuple[nn.Module, dict[str, ParallelStyle]]:
    """The Llama 2 with 70 billion parameters: 80 layers, whose heads share 8 keys and values."""
    return llama(
        80,
        hidden_size=8192,
        intermediate_size=28672,
        num_attention_heads=64,
        num_key_value_heads=8,
    )
