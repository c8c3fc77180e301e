"""Attention with functions of the user runs on the device."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from pjrt_bridge.torch_interop import compiled_graphs
from tests.torch_interop.helpers import assert_compiled, assert_same, compiled

pytestmark = [
    pytest.mark.usefixtures("fresh"),
    pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile:UserWarning"),
]

SLOPES = torch.tensor([0.5, 2.0])
DOCUMENTS = torch.arange(48) // 20


def causal(batch: Any, head: Any, query: Any, key: Any) -> Any:
    return query >= key


def same_document(batch: Any, head: Any, query: Any, key: Any) -> Any:
    return DOCUMENTS[query] == DOCUMENTS[key]


def distance(score: Any, batch: Any, head: Any, query: Any, key: Any) -> Any:
    return score - (query - key).abs() * SLOPES[head]


def block_mask(function: Callable[..., Any], size: int = 48) -> Any:
    return create_block_mask(function, None, None, size, size, device="cpu")


CAUSAL = block_mask(causal)

CASES: dict[str, Callable[[Tensor, Tensor, Tensor], Any]] = {
    "plain": lambda q, k, v: flex_attention(q, k, v),
    "score_mod": lambda q, k, v: flex_attention(q, k, v, score_mod=distance, scale=0.3),
    "block mask": lambda q, k, v: flex_attention(q, k, v, block_mask=CAUSAL),
    "mask of the graph": lambda q, k, v: flex_attention(
        q, k, v, score_mod=distance, block_mask=block_mask(same_document)
    ),
    "fewer heads": lambda q, k, v: flex_attention(
        q, k[:, :1], v[:, :1], block_mask=CAUSAL, enable_gqa=True
    ),
    "a number times a distance": lambda q, k, v: flex_attention(
        q, k, v, score_mod=lambda score, batch, head, i, j: score + (i - j) * 0.01
    ),
    "sums": lambda q, k, v: flex_attention(q, k, v, block_mask=CAUSAL, return_lse=True),
    "transposed": lambda q, k, v: flex_attention(
        *(x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v))
    ),
    "two layers": lambda q, k, v: flex_attention(
        flex_attention(q, k, v, block_mask=CAUSAL), k, v, score_mod=distance
    ),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_it_agrees_with_eager(name: str, dtype: torch.dtype) -> None:
    function = CASES[name]
    args = [torch.randn(2, 2, 48, 16).to(dtype) for _ in range(3)]
    found = compiled(function)(*args)
    exact = dtype is torch.float32
    assert_same(found, function(*args), rtol=1e-4 if exact else 2e-2, atol=1e-5 if exact else 1e-2)
    assert_compiled("inference")


def test_rows_that_see_nothing_are_zero() -> None:
    mask = block_mask(lambda batch, head, query, key: query < key)

    def function(x: Tensor) -> Any:
        return flex_attention(x, x, x, block_mask=mask, return_lse=True)

    x = torch.randn(1, 2, 48, 16)
    assert_same(compiled(function)(x), function(x))


def test_sizes_that_change() -> None:
    function = torch.compile(
        CASES["score_mod"], backend="pjrt", dynamic=True, options={"fallback": "error"}
    )
    for size in (16, 32, 48):
        args = [torch.randn(1, 2, size, 16) for _ in range(3)]
        assert_same(function(*args), CASES["score_mod"](*args))


@pytest.mark.filterwarnings("ignore::pjrt_bridge.errors.HostFallbackWarning")
def test_the_user_may_want_it_on_the_host() -> None:
    run = torch.compile(
        CASES["plain"], backend="pjrt", options={"host_ops": ["higher_order.flex_attention"]}
    )
    args = [torch.randn(1, 2, 48, 16) for _ in range(3)]
    assert_same(run(*args), CASES["plain"](*args))
    (graph,) = compiled_graphs()
    (reason,) = graph.fallback_reasons
    assert reason.operator == "higher_order.flex_attention"
