"""Lowerings of PyTorch's operators for XLA's CUDA plugin, asked before the portable ones."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

from pjrt_bridge.runtime import Client
from pjrt_bridge.stablehlo import Value
from pjrt_bridge.torch_interop.lowering.api import Attention, Context, Lowering, find_lowering
from pjrt_bridge_cuda.kernels import CudaKernels

_BACKWARD = "aten._scaled_dot_product_flash_attention_for_cpu_backward.default"
"""Of attention on every device, in the graphs that the bridge lowers."""


def lowerings(client: Client) -> dict[str, Lowering]:
    """By operator of a graph; for a client that can fuse attention."""
    return {_BACKWARD: partial(attention_backward, CudaKernels(client))}


def attention_backward(
    kernels: CudaKernels,
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
) -> Value | Sequence[Value | None]:
    """The gradients of query, key and value."""
    if not dropout_p and attn_mask is None:
        how = Attention(1 / math.sqrt(query.shape[3]) if scale is None else scale, bool(is_causal))
        found = kernels.attention_gradients(c.b, grad_out, query, key, value, out, logsumexp, how)
        if found is not None:
            return c.promised(*found)
    portable = find_lowering(_BACKWARD)
    assert portable is not None
    arguments = (grad_out, query, key, value, out, logsumexp, dropout_p, is_causal)
    return portable(c, *arguments, attn_mask=attn_mask, scale=scale)
