"""Scaled dot-product attention as torch's CPU flash kernel defines it, forward and backward.

`softmax(scale * q @ k^T + mask) @ v` over (batch, heads, length, head size). As in the kernel
the factors of products are in half precision; sums, scores and the softmax are float32. The forward
also gives the logarithm of each row's sum of exponentials, from which the backward recomputes the
probabilities (Dao et al., "FlashAttention", 2022). A row whose keys are all masked gives zeros and
a logarithm of 0, as the kernel does. Causal masking aligns queries and keys at their first
positions. Keys and values may have fewer heads than the queries (Ainslie et al., "GQA", 2023).
Attention dropout is random and not lowered. A target's own kernel computes the forward where it has
one (`Kernels.attention`).
"""

from __future__ import annotations

import math

from pjrt_bridge.stablehlo.builder.builder import Value
from pjrt_bridge.stablehlo.kernel_attributes import Attention
from pjrt_bridge.torch_interop.lowering.context import INT64, Context
from pjrt_bridge.torch_interop.lowering.linalg.matmul import product
from pjrt_bridge.torch_interop.lowering.registry import NotLowerable, lowering


@lowering("aten._scaled_dot_product_flash_attention_for_cpu.default")
def flash_attention(
    c: Context,
    query: Value,
    key: Value,
    value: Value,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: Value | None = None,
    scale: float | None = None,
) -> tuple[Value | None, ...]:
    """Attention output and the rows' logsumexp in (batch, heads, query length)."""
    b = c.b
    _no_dropout(dropout_p)
    how = Attention(_factor(query, scale), bool(is_causal))
    found = c.kernels.attention(b, query, key, value, attn_mask, how)
    if found is not None:
        return c.promised(*found)
    k, v = (_per_query_head(c, x, query.shape[1]) for x in (key, value))
    scores = _scores(c, query, k, is_causal, attn_mask, scale)
    zero = c.full(scores.shape[:3], 0, scores.dtype)
    largest = c.reduce("max", scores, (3,))
    masked = b.compare(largest, c.full(zero.shape, -math.inf, zero.dtype), "EQ")
    largest = b.select(masked, zero, largest)
    weights = b.exp(b.subtract(scores, c.spread(largest, scores.shape, (3,))))
    total = b.select(masked, c.full(zero.shape, 1, zero.dtype), c.reduce("sum", weights, (3,)))
    weighted = product(c, c.cast(weights, v.dtype), v)
    output = b.divide(weighted, c.spread(total, weighted.shape, (3,)))
    return c.promised(output, b.add(largest, b.log(total)))


@lowering("aten._scaled_dot_product_flash_attention_for_cpu_backward.default")
def flash_attention_backward(
    c: Context,
    grad_out: Value,
    query: Value,
    key: Value,
    value: Value,
    out: Value,
    logsumexp: Value,
    dropout_p: float,
    is_causal: bool,
    *,
    attn_mask: Value | None = None,
    scale: float | None = None,
) -> tuple[Value | None, ...]:
    """Gradients of query, key and value."""
    b = c.b
    _no_dropout(dropout_p)
    k, v = (_per_query_head(c, x, query.shape[1]) for x in (key, value))
    scores = _scores(c, query, k, is_causal, attn_mask, scale)
    rows = c.cast(logsumexp, scores.dtype)
    weights = b.exp(b.subtract(scores, c.spread(rows, scores.shape, (3,))))
    overlap = c.reduce("sum", b.multiply(c.widen(grad_out), c.widen(out)), (3,))
    slope = product(c, grad_out, _transposed(c, v))
    slope = b.subtract(slope, c.spread(overlap, scores.shape, (3,)))
    grad_scores = b.multiply(b.multiply(weights, slope), _scale(c, scores, query, scale))
    grad_scores, weights = (c.cast(x, query.dtype) for x in (grad_scores, weights))
    grad_k = product(c, _transposed(c, grad_scores), query)
    grad_v = product(c, _transposed(c, weights), grad_out)
    return c.promised(
        product(c, grad_scores, k),
        _per_key_head(c, grad_k, key.shape[1]),
        _per_key_head(c, grad_v, value.shape[1]),
    )


def _no_dropout(probability: float) -> None:
    if probability:
        raise NotLowerable(f"attention with dropout of {probability}")


def _transposed(c: Context, x: Value) -> Value:
    return c.b.transpose(x, (0, 1, 3, 2))


def _scale(c: Context, scores: Value, q: Value, scale: float | None) -> Value:
    return c.full(scores.shape, _factor(q, scale), scores.dtype)


def _factor(q: Value, scale: float | None) -> float:
    return 1 / math.sqrt(q.shape[3]) if scale is None else scale


def _scores(
    c: Context, q: Value, k: Value, is_causal: bool, mask: Value | None, scale: float | None
) -> Value:
    """Scaled and masked scores (batch, heads, query, key); -inf where masked."""
    b = c.b
    products = product(c, q, _transposed(c, k))
    scores = b.multiply(products, _scale(c, products, q, scale))
    never = c.full(scores.shape, -math.inf, scores.dtype)
    if mask is not None and mask.dtype.is_bool:
        scores = b.select(c.broadcast(mask, scores.shape), scores, never)
    elif mask is not None:
        scores = b.add(scores, c.operand(mask, scores.dtype, scores.shape))
    if is_causal:
        row, column = (b.iota(scores.shape, d, INT64) for d in (2, 3))
        scores = b.select(b.compare(column, row, "LE"), scores, never)
    return scores


def _per_query_head(c: Context, x: Value, heads: int) -> Value:
    """Each key or value head repeated for the consecutive query heads that share it."""
    batch, own, length, size = x.shape
    if own == heads:
        return x
    shape = (batch, own, heads // own, length, size)
    return c.reshape(c.spread(x, shape, (2,)), (batch, heads, length, size))


def _per_key_head(c: Context, grad: Value, heads: int) -> Value:
    """The sum over the query heads that share one key or value head."""
    batch, own, length, size = grad.shape
    if own == heads:
        return grad
    return c.reduce("sum", c.reshape(grad, (batch, heads, own // heads, length, size)), (2,))
