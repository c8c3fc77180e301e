"""Decomposition of the operator that `nn.TransformerEncoderLayer` becomes in inference.

Vaswani et al., "Attention is all you need" (2017), with the layer norms before or after each half.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.nn import functional as F  # noqa: N812

from pjrt_bridge.torch_interop.compat.operators import by_operator


def encoder_layer_decompositions() -> dict[OpOverload, Callable[..., Any]]:
    """For the operator its decomposition."""
    return by_operator({"aten._transformer_encoder_layer_fwd.default": _encoder_layer})


def _encoder_layer(
    src: Tensor,
    embed_dim: int,
    num_heads: int,
    qkv_weight: Tensor,
    qkv_bias: Tensor,
    proj_weight: Tensor,
    proj_bias: Tensor,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    norm_weight_1: Tensor,
    norm_bias_1: Tensor,
    norm_weight_2: Tensor,
    norm_bias_2: Tensor,
    ffn_weight_1: Tensor,
    ffn_bias_1: Tensor,
    ffn_weight_2: Tensor,
    ffn_bias_2: Tensor,
    mask: Tensor | None = None,
    mask_type: int | None = None,
) -> Any:
    """(batch, length, embed_dim) to the same shape.

    The mask is (length, length), (batch, length) or (batch, heads, length, length) for a mask type
    of 0, 1 or 2.
    """
    if src.is_nested:
        return NotImplemented

    def attend(x: Tensor) -> Tensor:
        projected = F.linear(x, qkv_weight, qkv_bias).view(*x.shape[:2], 3, num_heads, -1)
        q, k, v = projected.permute(2, 0, 3, 1, 4).unbind(0)
        if mask is None:
            mixed = F.scaled_dot_product_attention(q, k, v)
        else:
            mixed = _masked_attention(q, k, v, mask, mask_type)
        return F.linear(mixed.transpose(1, 2).flatten(2), proj_weight, proj_bias)

    def feed_forward(x: Tensor) -> Tensor:
        hidden = F.linear(x, ffn_weight_1, ffn_bias_1)
        return F.linear(F.gelu(hidden) if use_gelu else F.relu(hidden), ffn_weight_2, ffn_bias_2)

    def norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return F.layer_norm(x, (embed_dim,), weight, bias, eps)

    x = src
    for half, weight, bias in (
        (attend, norm_weight_1, norm_bias_1),
        (feed_forward, norm_weight_2, norm_bias_2),
    ):
        x = x + half(norm(x, weight, bias)) if norm_first else norm(x + half(x), weight, bias)
    return x


def _masked_attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor, mask_type: int | None
) -> Tensor:
    """Attention to keys that no mask hides; NaN where it hides all, as in ATen."""
    # ATen reads any number but 0 as True here, also in a float mask, which is elsewhere added.
    hidden = mask if mask.dtype == torch.bool else mask != 0
    if mask_type == 1:
        hidden = hidden[:, None, None, :]
    scores = q * (1 / math.sqrt(q.shape[-1])) @ k.transpose(-2, -1)
    return scores.masked_fill(hidden, -math.inf).softmax(-1) @ v
