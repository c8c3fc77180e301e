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
from pjrt_bridge.torch_interop.device.operators.operators import call

OPERATOR = torch.ops.aten.scaled_dot_product_attention.default

_IN_INFERENCE = torch.ops.aten._native_multi_head_attention.default

_NEED_WEIGHTS = 9
"""The place of `need_weights` among its arguments behind the query."""

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


def multi_head_attention(query: Tensor, *args: Any) -> tuple[Tensor, Tensor | None]:
    """`aten._native_multi_head_attention`, `nn.MultiheadAttention` in inference.

    PyTorch promises weights without elements, where its kernel gives none.
    """
    output, weights = call(_IN_INFERENCE, query, *args)
    # Torch leaves out what is given as by default: that weights are needed.
    needed = len(args) <= _NEED_WEIGHTS or args[_NEED_WEIGHTS]
    return output, weights if needed and query.numel() else None


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
