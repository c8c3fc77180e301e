"""Masks that a graph computes from positions alone, and that are causal."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.functional import scaled_dot_product_attention as attend

from pjrt_bridge.torch_interop.passes.causal_masks import recognize_causal_masks

QUERIES, KEYS = 6, 9


def positions() -> tuple[Tensor, Tensor]:
    return torch.arange(QUERIES)[:, None], torch.arange(KEYS)[None]


def written() -> Tensor:
    """As transformers does for a model that is traced."""
    rows, columns = torch.arange(QUERIES), torch.arange(KEYS)
    seen = rows.new_ones((), dtype=torch.bool)
    seen = seen & (columns[None, None, None] <= rows[None, None, :, None])
    return seen.expand(2, -1, QUERIES, KEYS)


CAUSAL: dict[str, Callable[[], Tensor]] = {
    "positions": lambda: torch.arange(KEYS)[None] <= torch.arange(QUERIES)[:, None],
    "transformers": written,
    "triangle": lambda: torch.ones(QUERIES, KEYS, dtype=torch.bool).tril(),
    "added": lambda: torch.full((QUERIES, KEYS), -math.inf).triu(1),
}
OTHERS: dict[str, Callable[[], Tensor]] = {
    "before": lambda: positions()[1] < positions()[0] + (positions()[0] == 0),
    "window": lambda: (positions()[1] <= positions()[0]) & (positions()[1] > positions()[0] - 3),
    "large number": lambda: torch.full((QUERIES, KEYS), -1e9).triu(1),
    "slope": lambda: torch.full((QUERIES, KEYS), -math.inf).triu(1) - 1,
    "last": lambda: torch.ones(QUERIES, KEYS, dtype=torch.bool).tril(KEYS - QUERIES),
    "heads": lambda: (
        torch.ones(4, 1, 1).gt(torch.arange(4)[:, None, None]) & (positions()[1] <= positions()[0])
    ),
}


def traced(function: Callable[..., Any], *given: Tensor) -> Any:
    return make_fx(function, tracing_mode="fake")(*given)


def attentions(module: Any) -> list[Any]:
    return [node for node in module.graph.nodes if "flash_attention" in str(node.target)]


def sides() -> list[Tensor]:
    torch.manual_seed(0)
    return [torch.randn(2, 4, length, 8) for length in (QUERIES, KEYS, KEYS)]


def with_gradients(mask: Callable[[], Tensor]) -> Callable[..., Any]:
    def function(*given: Tensor) -> Any:
        given = tuple(x.detach().requires_grad_() for x in given)
        output = attend(*given, attn_mask=mask())
        return output, *torch.autograd.grad(output.square().sum(), given)

    return function


@pytest.mark.parametrize("name", CAUSAL)
def test_a_causal_mask_becomes_a_word(name: str) -> None:
    function, given = with_gradients(CAUSAL[name]), sides()
    module = traced(function, *given)
    assert len(attentions(module)) == 2
    recognize_causal_masks(module.graph)
    module.recompile()
    for node, place in zip(attentions(module), (4, 7), strict=True):
        assert node.args[place] is True
        assert "attn_mask" not in node.kwargs
    assert not any("arange" in str(node.target) for node in module.graph.nodes)
    for found, wanted in zip(module(*given), function(*given), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", OTHERS)
def test_another_mask_stays(name: str) -> None:
    def function(*given: Tensor) -> Tensor:
        mask = OTHERS[name]()
        return attend(*given, attn_mask=mask if mask.dim() == 2 else mask[None])

    module = traced(function, *sides())
    before = str(module.graph)
    recognize_causal_masks(module.graph)
    assert str(module.graph) == before
    (node,) = attentions(module)
    assert node.kwargs["attn_mask"] is not None


def test_a_mask_of_the_input_stays() -> None:
    mask = torch.ones(QUERIES, KEYS, dtype=torch.bool).tril()
    module = traced(lambda m, *given: attend(*given, attn_mask=m), mask, *sides())
    before = str(module.graph)
    recognize_causal_masks(module.graph)
    assert str(module.graph) == before


@pytest.mark.parametrize("scale", [-0.5, 0.0])
def test_a_mask_stays_where_scores_of_minus_infinity_would_be_scaled(scale: float) -> None:
    """PyTorch's kernel scales what is hidden because of `is_causal`, and gives NaN."""
    given = sides()
    mask = next(iter(CAUSAL.values()))
    module = traced(lambda *given: attend(*given, attn_mask=mask(), scale=scale), *given)
    recognize_causal_masks(module.graph)
    module.recompile()
    (node,) = attentions(module)
    assert node.kwargs["attn_mask"] is not None
    assert not module(*given).isnan().any()
