"""Attention on accelerators: one operator in the graph, and what PyTorch runs in its place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.functional import scaled_dot_product_attention as attend

from pjrt_bridge.torch_interop.compat.decomposed import accelerator_attention
from pjrt_bridge.torch_interop.compat.decomposed.accelerator_attention import CHOOSING
from pjrt_bridge.torch_interop.compat.decomposed.accelerators import portable_kernels

FORWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default
TOLERANCES: dict[torch.dtype, dict[str, float]] = {
    torch.bfloat16: {"rtol": 2e-2, "atol": 2e-2},
    torch.float16: {"rtol": 3e-3, "atol": 3e-3},
    torch.float32: {"rtol": 1e-5, "atol": 1e-5},
}


def heads_inside(batch: int, heads: int, length: int, size: int) -> Tensor:
    return torch.randn(batch, length, heads, size).transpose(1, 2)


MASKS: dict[str, Callable[[], dict[str, Any]]] = {
    "none": dict,
    "causal": lambda: {"is_causal": True, "scale": 0.3},
    "bool": lambda: {"attn_mask": torch.rand(6, 9) > 0.3},
    "added": lambda: {"attn_mask": torch.randn(6, 9)},
    "a row without keys": lambda: {"attn_mask": torch.arange(6).unsqueeze(1) > torch.arange(9)},
}


@pytest.mark.parametrize("dtype", list(TOLERANCES), ids=str)
@pytest.mark.parametrize("mask", MASKS)
def test_the_kernels_for_others_compute_what_the_hosts_compute(
    mask: str, dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    query = heads_inside(2, 4, 6, 8).to(dtype)
    key, value = (heads_inside(2, 4, 9, 8).to(dtype) for _ in range(2))
    slope = torch.randn(query.shape).to(dtype)
    given = MASKS[mask]()
    hosts = dict(given)
    if mask in ("bool", "a row without keys"):
        # The host's kernels take what is added.
        hosts["attn_mask"] = torch.zeros(6, 9).masked_fill(~given["attn_mask"], -torch.inf)
    # They round probabilities to half precision.
    exact = [side.float() for side in (query, key, value)]
    wanted = FORWARD(*exact, **hosts)
    found = accelerator_attention._forward(query, key, value, **given)
    assert found[0].dtype == dtype
    assert found[0].stride() == query.stride()
    torch.testing.assert_close(found[0].float(), wanted[0], **TOLERANCES[dtype])
    seen = found[1] > -torch.inf
    torch.testing.assert_close(found[1][seen], wanted[1][seen], rtol=1e-5, atol=1e-5)
    is_causal = given.pop("is_causal", False)
    hosts.pop("is_causal", None)
    gradients = accelerator_attention._backward(
        slope, query, key, value, *found, 0.0, is_causal, **given
    )
    expected = BACKWARD(slope.float(), *exact, *wanted, 0.0, is_causal, **hosts)
    for mine, right in zip(gradients, expected, strict=True):
        assert mine.dtype == dtype
        assert mine.stride() == right.stride()
        torch.testing.assert_close(mine.float(), right, **TOLERANCES[dtype])


def test_query_heads_that_share_a_key_head() -> None:
    torch.manual_seed(0)
    query, few = heads_inside(2, 6, 4, 8), [heads_inside(2, 2, 4, 8) for _ in range(2)]
    sides = [query, *few]
    for side in sides:
        side.requires_grad_()
    wanted = attend(query, *few, enable_gqa=True)
    slope = torch.randn_like(wanted)
    gradients = torch.autograd.grad(wanted, sides, slope)
    with torch.no_grad():
        output, sums = accelerator_attention._forward(query, *few)
        torch.testing.assert_close(output, wanted)
        found = accelerator_attention._backward(slope, query, *few, output, sums, 0.0, False)
    for mine, right in zip(found, gradients, strict=True):
        torch.testing.assert_close(mine, right, rtol=1e-4, atol=1e-5)


def operators_of(function: Callable[..., Any], *shapes: Any) -> set[str]:
    """Those that are traced for tensors on CUDA, which need not be there."""
    with FakeTensorMode() as mode:
        given = [torch.empty(shape, dtype=dtype, device="cuda") for shape, dtype in shapes]
    with mode, portable_kernels(given, CHOOSING):
        traced = make_fx(function)(*given)
    return {str(node.target) for node in traced.graph.nodes if node.op == "call_function"}


HALF = torch.bfloat16
SIDES = ((2, 4, 6, 8), HALF)
MASK = ((2, 1, 6, 6), torch.bool)


@pytest.mark.parametrize(
    ("function", "given"),
    [
        (lambda q: attend(q, q, q, is_causal=True), [SIDES]),
        (lambda q: attend(q, key=q, value=q, scale=0.5), [SIDES]),
        (lambda q, m: attend(q, q, q, attn_mask=m), [SIDES, MASK]),
        (lambda q, m: attend(q, q, q, m.float()), [SIDES, MASK]),
        (lambda q, k: attend(q, k, k, enable_gqa=True), [SIDES, ((2, 2, 6, 8), HALF)]),
    ],
    ids=["causal", "named", "mask", "added", "shared heads"],
)
def test_half_precision_is_one_operator(function: Callable[..., Any], given: list[Any]) -> None:
    assert str(FORWARD) in operators_of(function, *given)


@pytest.mark.parametrize(
    ("function", "given"),
    [
        (lambda q: attend(q, q, q), [((2, 4, 6, 8), torch.float32)]),
        (lambda q: attend(q, q, q), [((4, 6, 8), HALF)]),
        (lambda q: attend(q, q, q, dropout_p=0.5), [SIDES]),
        (lambda q, v: attend(q, q, v), [SIDES, ((2, 4, 6, 4), HALF)]),
        (lambda q, k: attend(q, k, k), [SIDES, ((1, 4, 6, 8), HALF)]),
        (lambda q, k: attend(q, k, k), [SIDES, ((2, 1, 6, 8), HALF)]),
    ],
    ids=["float32", "three dims", "dropout", "sizes", "batch", "heads"],
)
def test_other_attention_is_left_to_torch(function: Callable[..., Any], given: list[Any]) -> None:
    found = operators_of(function, *given)
    assert not any("flash" in name for name in found)
    assert "aten.bmm.default" in found
