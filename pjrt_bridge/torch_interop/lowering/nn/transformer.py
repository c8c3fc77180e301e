"""The fused encoder layer that `nn.TransformerEncoderLayer` becomes in inference.

Vaswani et al., "Attention is all you need" (2017), with the layer norms before or after each
half. Computed in float32 for half precision. A mask is True where a key is masked; a query
whose keys are all masked gives NaN, as in ATen.
"""

from __future__ import annotations

import math

from pjrt_bridge.stablehlo.builder.builder import Value
from pjrt_bridge.torch_interop.lowering.context import Context
from pjrt_bridge.torch_interop.lowering.nn.activation import gelu_of
from pjrt_bridge.torch_interop.lowering.nn.normalization import normalize_last
from pjrt_bridge.torch_interop.lowering.registry import lowering


@lowering("aten._transformer_encoder_layer_fwd.default")
def encoder_layer(
    c: Context,
    src: Value,
    embed_dim: int,
    num_heads: int,
    qkv_weight: Value,
    qkv_bias: Value,
    proj_weight: Value,
    proj_bias: Value,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    norm_weight_1: Value,
    norm_bias_1: Value,
    norm_weight_2: Value,
    norm_bias_2: Value,
    ffn_weight_1: Value,
    ffn_bias_1: Value,
    ffn_weight_2: Value,
    ffn_bias_2: Value,
    mask: Value | None = None,
    mask_type: int | None = None,
) -> Value:
    """(batch, length, embed_dim) to the same shape.

    The mask is (length, length), (batch, length) or (batch, heads, length, length) for a mask
    type of 0, 1 or 2.
    """
    b = c.b

    def attend(x: Value) -> Value:
        projected = _linear(c, x, qkv_weight, qkv_bias)
        mixed = _self_attention(c, projected, num_heads, mask, mask_type)
        return _linear(c, mixed, proj_weight, proj_bias)

    def feed_forward(x: Value) -> Value:
        hidden = _linear(c, x, ffn_weight_1, ffn_bias_1)
        zero = c.full(hidden.shape, 0, hidden.dtype)
        hidden = gelu_of(c, hidden) if use_gelu else b.maximum(hidden, zero)
        return _linear(c, hidden, ffn_weight_2, ffn_bias_2)

    x = c.widen(src)
    for half, weight, bias in (
        (attend, norm_weight_1, norm_bias_1),
        (feed_forward, norm_weight_2, norm_bias_2),
    ):
        if norm_first:
            x = b.add(x, half(normalize_last(c, x, 1, weight, bias, eps)[0]))
        else:
            x = normalize_last(c, b.add(x, half(x)), 1, weight, bias, eps)[0]
    return c.result(x)


def _linear(c: Context, x: Value, weight: Value, bias: Value) -> Value:
    """`x @ weight^T + bias` over the last dimension."""
    product = c.b.dot_general(
        x, c.cast(weight, x.dtype), lhs_contract=(x.rank - 1,), rhs_contract=(1,)
    )
    return c.b.add(product, c.operand(bias, product.dtype, product.shape))


def _self_attention(
    c: Context, projected: Value, heads: int, mask: Value | None, mask_type: int | None
) -> Value:
    """From (batch, length, 3 * embed) queries, keys and values to (batch, length, embed)."""
    b = c.b
    batch, length, width = projected.shape
    size = width // 3 // heads
    split = c.reshape(projected, (batch, length, 3, heads, size))
    q, k, v = (
        c.reshape(
            b.slice(split, (0, 0, i, 0, 0), (batch, length, i + 1, heads, size)),
            (batch, length, heads, size),
        )
        for i in range(3)
    )
    scores = b.dot_general(
        q, k, lhs_batch=(0, 2), rhs_batch=(0, 2), lhs_contract=(3,), rhs_contract=(3,)
    )
    scores = b.multiply(scores, c.full(scores.shape, 1 / math.sqrt(size), scores.dtype))
    if mask is not None:
        never = c.full(scores.shape, -math.inf, scores.dtype)
        scores = b.select(_laid_out(c, mask, mask_type, scores.shape), never, scores)
    largest = c.spread(c.reduce("max", scores, (3,)), scores.shape, (3,))
    weights = b.exp(b.subtract(scores, largest))
    weights = b.divide(weights, c.spread(c.reduce("sum", weights, (3,)), scores.shape, (3,)))
    mixed = b.dot_general(
        weights, v, lhs_batch=(0, 1), rhs_batch=(0, 2), lhs_contract=(3,), rhs_contract=(1,)
    )
    return c.reshape(b.transpose(mixed, (0, 2, 1, 3)), (batch, length, width // 3))


def _laid_out(c: Context, mask: Value, mask_type: int | None, shape: tuple[int, ...]) -> Value:
    # ATen reads any number but 0 as True here, also in a float mask, which is elsewhere added.
    if not mask.dtype.is_bool:
        mask = c.b.compare(mask, c.full(mask.shape, 0, mask.dtype), "NE")
    if mask_type == 1:
        return c.b.broadcast_in_dim(mask, shape, (0, 3))
    return c.broadcast(mask, shape)
