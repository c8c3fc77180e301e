"""What `nn.TransformerEncoderLayer` and `nn.MultiheadAttention` become in inference: one operator.

Vaswani et al., "Attention is all you need" (2017), with the layer norms before or after each
half. Computed in float32 for half precision. A mask is True where a key is masked; a query
whose keys are all masked gives NaN, as in ATen. It is (length, length), (batch, length) or
(batch, heads, length, length) for a mask type of 0, 1 or 2.
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
    """(batch, length, embed_dim) to the same shape."""
    b = c.b

    def attend(x: Value) -> Value:
        q, k, v = _projected(c, (x, x, x), qkv_weight, qkv_bias, num_heads)
        mixed, _ = _attention(c, q, k, v, mask, mask_type)
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


@lowering("aten._native_multi_head_attention.default")
def multi_head_attention(
    c: Context,
    query: Value,
    key: Value,
    value: Value,
    embed_dim: int,
    num_head: int,
    qkv_weight: Value,
    qkv_bias: Value,
    proj_weight: Value,
    proj_bias: Value,
    mask: Value | None = None,
    need_weights: bool = True,
    average_attn_weights: bool = True,
    mask_type: int | None = None,
) -> tuple[Value | None, ...]:
    """(batch, length, embed_dim) to the same shape, and the weights, of each head or their mean.

    Weights that are not needed, or of no elements, are promised in the shape (0,).
    """
    b = c.b
    one = query is key is value
    inputs = (c.widen(query),) * 3 if one else tuple(map(c.widen, (query, key, value)))
    q, k, v = _projected(c, inputs, qkv_weight, qkv_bias, num_head)
    mixed, weights = _attention(c, q, k, v, mask, mask_type)
    output = _linear(c, mixed, proj_weight, proj_bias)
    if not need_weights or not math.prod(query.shape):
        weights = c.full((0,), 0, output.dtype)
    elif average_attn_weights:
        total = c.reduce("sum", weights, (1,))
        weights = b.divide(total, c.full(total.shape, num_head, total.dtype))
    return c.promised(output, weights)


def _linear(c: Context, x: Value, weight: Value, bias: Value) -> Value:
    """`x @ weight^T + bias` over the last dimension."""
    product = c.b.dot_general(
        x, c.cast(weight, x.dtype), lhs_contract=(x.rank - 1,), rhs_contract=(1,)
    )
    return c.b.add(product, c.operand(bias, product.dtype, product.shape))


def _projected(
    c: Context, inputs: tuple[Value, ...], weight: Value, bias: Value, heads: int
) -> list[Value]:
    """Queries, keys and values, (batch, length, heads, head size) each, of what they are made of.

    The three may be one value, which one product projects.
    """
    b, width = c.b, weight.shape[0] // 3
    first = inputs[0]
    joined = _linear(c, first, weight, bias) if all(x is first for x in inputs) else None
    found = []
    for i, x in enumerate(inputs):
        start, stop = i * width, (i + 1) * width
        if joined is not None:
            part = b.slice(joined, (0, 0, start), (*joined.shape[:2], stop))
        else:
            rows = b.slice(weight, (start, 0), (stop, weight.shape[1]))
            part = _linear(c, x, rows, b.slice(bias, (start,), (stop,)))
        found.append(c.reshape(part, (*part.shape[:2], heads, width // heads)))
    return found


def _attention(
    c: Context, q: Value, k: Value, v: Value, mask: Value | None, mask_type: int | None
) -> tuple[Value, Value]:
    """(batch, length, embed) of what is attended to, and the weights of each head."""
    b = c.b
    batch, length, heads, size = q.shape
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
    mixed = c.reshape(b.transpose(mixed, (0, 2, 1, 3)), (batch, length, heads * size))
    return mixed, weights


def _laid_out(c: Context, mask: Value, mask_type: int | None, shape: tuple[int, ...]) -> Value:
    # ATen reads any number but 0 as True here, also in a float mask, which is elsewhere added.
    if not mask.dtype.is_bool:
        mask = c.b.compare(mask, c.full(mask.shape, 0, mask.dtype), "NE")
    if mask_type == 1:
        return c.b.broadcast_in_dim(mask, shape, (0, 3))
    return c.broadcast(mask, shape)
