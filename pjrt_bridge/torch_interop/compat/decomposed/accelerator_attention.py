"""Attention on accelerators, traced as the one operator that is lowered for every device.

For tensors on CUDA, `scaled_dot_product_attention` becomes one of several operators of CUDA's
libraries, or products and a softmax in float32. Traced here it becomes the operator that it becomes
on the host, `aten._scaled_dot_product_flash_attention_for_cpu`, for which a target may have a
kernel. PyTorch has that on the host alone, so there are kernels of it for others here: a
part of a graph that runs in PyTorch may have it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from torch.overrides import TorchFunctionMode

_HALF = (torch.float16, torch.bfloat16)
_FORWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default


CHOOSING = ("cuda", "xpu")
"""Torch's types of its own accelerators, for which it chooses among kernels of libraries."""


class OneAttention(TorchFunctionMode):
    """Has torch trace attention in half precision on an accelerator as one operator.

    Uses with dropout, with gradients of a mask, or of other than four dimensions are left.

    Args:
        kind: torch's type of the device.
    """

    def __init__(self, kind: str) -> None:
        super().__init__()
        self._kind = kind

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Called for each function of torch."""
        kwargs = kwargs or {}
        if func is scaled_dot_product_attention:
            found = self._attention(*args, **kwargs)
            if found is not None:
                return found
        return func(*args, **kwargs)

    def _attention(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor | None:
        """The output; None where attention is left to torch."""
        sides = [query, key, value]
        if any(side.device.type != self._kind or side.dim() != 4 for side in sides):
            return None
        if dropout_p or (
            attn_mask is not None and (is_causal or not fits_attention(attn_mask, query))
        ):
            return None
        if torch.is_autocast_enabled(self._kind):
            dtype = torch.get_autocast_dtype(self._kind)
            sides = [side.to(dtype) if side.dtype != torch.float64 else side for side in sides]
        if any(side.dtype not in _HALF or side.dtype != sides[0].dtype for side in sides):
            return None
        (batch, heads, _, size), (_, key_heads, _, _) = query.shape, key.shape
        if key.shape != value.shape or key.shape[0] != batch or key.shape[3] != size:
            return None
        if heads != key_heads and not (enable_gqa and heads % key_heads == 0):
            return None
        if self._kind in CHOOSING:
            _register(self._kind)
        else:
            # What PyTorch runs of such a graph it runs on the host, by its own kernel.
            attn_mask = added_mask(attn_mask, sides[0].dtype)
        query, key, value = sides
        return one_attention(query, key, value, is_causal, attn_mask, scale)


def may_fuse_attention() -> bool:
    """Whether `torch.nn.attention.sdpa_kernel` allows the operator, as on the host."""
    return bool(torch._C._get_flash_sdp_enabled())


def one_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    is_causal: bool,
    mask: Tensor | None,
    scale: float | None,
) -> Tensor:
    """The output of the operator that attention is on the host."""
    output: Tensor = _FORWARD(query, key, value, 0.0, is_causal, attn_mask=mask, scale=scale)[0]
    return output


def added_mask(mask: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """What is added to scores for a mask, as the host's kernels take it."""
    if mask is None or mask.dtype != torch.bool:
        return mask
    return torch.zeros_like(mask, dtype=dtype).masked_fill(~mask, -math.inf)


def fits_attention(mask: Tensor, query: Tensor) -> bool:
    """Whether the operator takes a mask."""
    return (
        mask.dim() in (2, 4)
        and not mask.requires_grad
        and mask.dtype in (torch.bool, torch.float32, query.dtype)
    )


@cache
def _register(kind: str) -> None:
    for name, kernel in (
        ("aten::_scaled_dot_product_flash_attention_for_cpu", _forward),
        ("aten::_scaled_dot_product_flash_attention_for_cpu_backward", _backward),
    ):
        torch.library.impl(name, kind, kernel)


def _forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
) -> tuple[Tensor, Tensor]:
    scores = _scores(query, key, is_causal, attn_mask, scale)
    sums = scores.logsumexp(-1)
    weights = scores.sub_(_finite(sums).unsqueeze(-1)).exp_()
    output = weights @ _per_query_head(value, query).float()
    # In the strides that torch promises.
    promised = torch.empty_like(query).copy_(output)
    return promised, sums.transpose(1, 2).contiguous().transpose(1, 2)


def _backward(
    grad_out: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    logsumexp: Tensor,
    dropout_p: float,
    is_causal: bool,
    *,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    scores = _scores(query, key, is_causal, attn_mask, scale)
    weights = scores.sub_(_finite(logsumexp).unsqueeze(-1)).exp_()
    grad_out = grad_out.float()
    overlap = (grad_out * out).sum(-1, keepdim=True)
    grad_value = weights.transpose(2, 3) @ grad_out
    slope = grad_out @ _per_query_head(value, query).float().transpose(2, 3)
    grad_scores = weights * (slope - overlap) * _factor(query, scale)
    grad_query = grad_scores @ _per_query_head(key, query).float()
    grad_key = grad_scores.transpose(2, 3) @ query.float()
    gradients = (
        (grad_query, query),
        (_per_key_head(grad_key, key), key),
        (_per_key_head(grad_value, value), value),
    )
    query, key, value = (
        torch.empty_permuted(x.shape, (0, 2, 1, 3), dtype=x.dtype, device=x.device).copy_(grad)
        for grad, x in gradients
    )
    return query, key, value


def _scores(
    query: Tensor, key: Tensor, is_causal: bool, mask: Tensor | None, scale: float | None
) -> Tensor:
    products = query.float() @ _per_query_head(key, query).float().transpose(2, 3)
    scores = products.mul_(_factor(query, scale))
    if is_causal:
        mask = torch.ones(scores.shape[2:], dtype=torch.bool, device=scores.device).tril_()
    if mask is None:
        return scores
    return scores.masked_fill_(~mask, -math.inf) if mask.dtype == torch.bool else scores.add_(mask)


def _finite(sums: Tensor) -> Tensor:
    """Logarithms of sums, 0 for those of no keys: the exponentials of their scores stay 0."""
    return sums.masked_fill(sums == -math.inf, 0.0)


def _factor(query: Tensor, scale: float | None) -> float:
    return 1 / math.sqrt(query.shape[3]) if scale is None else scale


def _per_query_head(x: Tensor, query: Tensor) -> Tensor:
    return x.repeat_interleave(query.shape[1] // x.shape[1], dim=1)


def _per_key_head(grad: Tensor, like: Tensor) -> Tensor:
    batch, heads, length, size = like.shape
    return grad.reshape(batch, heads, -1, length, size).sum(2)
