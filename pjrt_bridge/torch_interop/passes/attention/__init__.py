"""Attention that a model writes with products and a softmax becomes torch's operator of attention.

A target's kernel computes that without the matrix of all scores, forward and backward.

Before: `%s = bmm(%q, %k); %p = _softmax(add(mul(%s, 0.125), %mask), -1, False); %o = bmm(%p, %v)`.
After: `%o = getitem(_scaled_dot_product_flash_attention_for_cpu(%q, transpose(%k), %v,
attn_mask=%mask, scale=0.125), 0)`.

`elements.py` looks through nodes that only lay elements out, `scores.py` finds attention,
`gradients.py` its gradients in the graph of a step forward and backward, `masks.py` makes one mask
of all that is added to scores or hides them, and `joining.py` writes the operators.
"""

from pjrt_bridge.torch_interop.passes.attention.joining import join_attention

__all__ = ["join_attention"]
