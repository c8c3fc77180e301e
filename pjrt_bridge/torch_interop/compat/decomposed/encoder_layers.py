"""Decompositions of what `nn.TransformerEncoderLayer` and `nn.MultiheadAttention` are in inference.

Each is one operator. Vaswani et al., "Attention is all you need" (2017), with the layer norms
before or after each half. A mask is true where a key is hidden; a query that it hides all keys from
gives NaN, as in ATen. It is (length, length), (batch, length) or (batch, heads, length, length) for
a mask type of 0, 1 or 2.
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
    """For each operator its decomposition."""
    rules: dict[str, Callable[..., Any]] = {
        "aten._native_multi_head_attention.default": _multi_head_attention,
        "aten._transformer_encoder_layer_fwd.default": _encoder_layer,
    }
    return by_operator(rules)


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
    """(batch, length, embed_dim) to the same shape."""
    if src.is_nested:
        return NotImplemented

    def attend(x: Tensor) -> Tensor:
        found: Tensor
        found, _ = _multi_head_attention(
            x,
            x,
            x,
            embed_dim,
            num_heads,
            qkv_weight,
            qkv_bias,
            proj_weight,
            proj_bias,
            mask,
            need_weights=False,
            mask_type=mask_type,
        )
        return found

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


def _multi_head_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    embed_dim: int,
    num_head: int,
    qkv_weight: Tensor,
    qkv_bias: Tensor,
    proj_weight: Tensor,
    proj_bias: Tensor,
    mask: Tensor | None = None,
    need_weights: bool = True,
    average_attn_weights: bool = True,
    mask_type: int | None = None,
) -> Any:
    """(batch, length, embed_dim) to the same shape, and the weights, of each head or their mean.

    Weights that are not needed, or of no elements, are promised in the shape (0,).
    """
    if query.is_nested:
        return NotImplemented
    needed = need_weights and 0 not in query.shape
    q, k, v = _projected((query, key, value), qkv_weight, qkv_bias, num_head)
    mixed, weights = _attention(q, k, v, mask, mask_type, need_weights=needed)
    if weights is None:
        weights = query.new_zeros((0,))
    elif average_attn_weights:
        weights = weights.mean(1)
    return F.linear(mixed, proj_weight, proj_bias), weights


def _projected(
    inputs: tuple[Tensor, Tensor, Tensor], weight: Tensor, bias: Tensor, heads: int
) -> list[Tensor]:
    """Queries, keys and values, (batch, heads, length, size) each, of what they are made of.

    The three may be one tensor, which one product projects.
    """
    first = inputs[0]
    if all(item is first for item in inputs):
        parts = F.linear(first, weight, bias).chunk(3, -1)
    else:
        split = zip(inputs, weight.chunk(3), bias.chunk(3), strict=True)
        parts = tuple(F.linear(*item) for item in split)
    sizes = (heads, parts[0].shape[-1] // heads)
    return [part.view(*part.shape[:2], *sizes).transpose(1, 2) for part in parts]


def _attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    mask_type: int | None,
    *,
    need_weights: bool,
) -> tuple[Tensor, Tensor | None]:
    """(batch, length, embed_dim) of what is attended to; the weights of each head if needed."""
    weights = None
    if mask is None and not need_weights:
        mixed = F.scaled_dot_product_attention(q, k, v)
    else:
        scores = q * (1 / math.sqrt(q.shape[-1])) @ k.transpose(-2, -1)
        if mask is not None:
            # ATen reads any number but 0 as true here, also in a float mask, elsewhere added.
            hidden = mask if mask.dtype == torch.bool else mask != 0
            hidden = hidden[:, None, None, :] if mask_type == 1 else hidden
            scores = scores.masked_fill(hidden, -math.inf)
        weights = scores.softmax(-1)
        mixed = weights @ v
    return mixed.transpose(1, 2).flatten(2), weights if need_weights else None
