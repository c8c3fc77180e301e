"""Attention on resident tensors as one operator, which is the one that it is on the host.

Torch writes attention out for devices without a kernel of their own: some thirty operators forward
and backward, each of which is called by itself in eager. Graphs that are traced have it as torch
traces it.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from pjrt_bridge.torch_interop import compat

OPERATOR = torch.ops.aten.scaled_dot_product_attention.default

_TYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """`aten.scaled_dot_product_attention`; torch's own where the operator does not take a call."""
    given = (query, key, value, attn_mask)
    if dropout_p or not _takes(*given):
        options: dict[str, Any] = {"scale": scale, "enable_gqa": enable_gqa}
        return cast(Tensor, OPERATOR.decompose(*given, dropout_p, is_causal, **options))
    mask = compat.added_mask(attn_mask, query.dtype)
    return compat.one_attention(query, key, value, is_causal, mask, scale)


def _takes(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> bool:
    """Whether the operator takes such tensors; it has first gradients alone, as on the host."""
    shape = query.shape
    return (
        all(type(x) in (Tensor, torch.nn.Parameter) for x in (query, key, value))
        and compat.may_fuse_attention()
        and not compat.is_forward_mode()
        and not compat.are_transforms_active()
        and query.dtype in _TYPES
        and key.dtype == value.dtype == query.dtype
        and query.dim() == key.dim() == value.dim() == 4
        and key.shape == value.shape
        and (key.shape[0], key.shape[1], key.shape[3]) == (shape[0], shape[1], shape[3])
        and 0 not in (*shape, *key.shape)
        and (mask is None or _takes_mask(mask, query, key))
    )


def _takes_mask(mask: Tensor, query: Tensor, key: Tensor) -> bool:
    scores = (*query.shape[:3], key.shape[2])
    return (
        type(mask) is Tensor
        and mask.device == query.device
        and compat.fits_attention(mask, query)
        and all(
            size in (1, wanted)
            for size, wanted in zip(mask.shape, scores[-mask.dim() :], strict=True)
        )
    )
