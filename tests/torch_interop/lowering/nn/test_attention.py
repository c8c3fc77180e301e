import math

import pytest
import torch

from pjrt_bridge.torch_interop.lowering.registry import NotLowerable
from tests.torch_interop.lowering.harness import check, compare, lower, overload

FORWARD = "aten._scaled_dot_product_flash_attention_for_cpu.default"
BACKWARD = "aten._scaled_dot_product_flash_attention_for_cpu_backward.default"

torch.manual_seed(0)
Q, K, V = torch.randn(2, 4, 3, 8), torch.randn(2, 4, 5, 8), torch.randn(2, 4, 5, 8)
MASK = torch.randn(3, 5)
BLOCKED = torch.zeros(2, 1, 3, 5)
BLOCKED[0, 0, 1] = -math.inf
BLOCKED[1, 0, 0, 2] = -math.inf

CASES = [
    (False, {}),
    (True, {}),
    (False, {"scale": 0.3}),
    (False, {"attn_mask": MASK}),
    (False, {"attn_mask": BLOCKED, "scale": 1.0}),
]


@pytest.mark.parametrize(("causal", "kwargs"), CASES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_forward(causal, kwargs, dtype):
    mask = {k: v.to(dtype) if k == "attn_mask" else v for k, v in kwargs.items()}
    check(FORWARD, *(x.to(dtype) for x in (Q, K, V)), 0.0, causal, **mask)


@pytest.mark.parametrize(("causal", "kwargs"), CASES)
def test_backward_is_the_gradient_of_plain_attention(causal, kwargs):
    grad = torch.randn_like(Q)
    out, logsumexp = overload(FORWARD)(Q, K, V, 0.0, causal, **kwargs)
    leaves = [x.clone().requires_grad_() for x in (Q, K, V)]
    plain = _attention(*leaves, causal, **kwargs)
    expected = torch.autograd.grad(plain, leaves, grad)
    compare(lower(BACKWARD, grad, Q, K, V, out, logsumexp, 0.0, causal, **kwargs), expected)


def _attention(q, k, v, causal, attn_mask=None, scale=None):
    scores = q @ k.mT * (1 / math.sqrt(q.shape[-1]) if scale is None else scale)
    if attn_mask is not None:
        scores = scores + attn_mask
    if causal:
        scores = scores.masked_fill(~torch.ones(scores.shape[-2:]).tril().bool(), -math.inf)
    blocked = (scores == -math.inf).all(-1, keepdim=True)
    return torch.where(blocked, 0.0, scores.masked_fill(blocked, 0.0).softmax(-1)) @ v


def test_fewer_key_heads_than_query_heads():
    k, v = torch.randn(2, 2, 5, 8), torch.randn(2, 2, 5, 8)
    expected = _attention(Q, k.repeat_interleave(2, 1), v.repeat_interleave(2, 1), False)
    out, logsumexp = lower(FORWARD, Q, k, v)
    compare([out], [expected])
    leaves = [x.clone().requires_grad_() for x in (Q, k, v)]
    shared = [leaves[0], *(x.repeat_interleave(2, 1) for x in leaves[1:])]
    gradients = torch.autograd.grad(_attention(*shared, False), leaves, torch.ones_like(Q))
    compare(lower(BACKWARD, torch.ones_like(Q), Q, k, v, out, logsumexp, 0.0, False), gradients)


def test_dropout_is_refused():
    with pytest.raises(NotLowerable, match=r"dropout of 0\.5"):
        lower(FORWARD, Q, K, V, 0.5)
