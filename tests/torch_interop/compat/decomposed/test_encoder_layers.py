"""Encoder layers and attention in inference: masks of each type, orders of norms, weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from pjrt_bridge.torch_interop import compiled_graphs
from tests.torch_interop.helpers import compiled

pytestmark = pytest.mark.usefixtures("fresh")

BATCH, LENGTH, WIDTH, HEADS = 3, 5, 8, 2
OPERATOR = torch.ops.aten._transformer_encoder_layer_fwd.default
ATTENTION = torch.ops.aten._native_multi_head_attention.default


def _layer(*, use_gelu: bool, norm_first: bool) -> Callable[..., torch.Tensor]:
    """The operator with random weights, of (batch, length, width), a mask and its type."""
    torch.manual_seed(0)
    shapes = [(3 * WIDTH, WIDTH), (3 * WIDTH,), (WIDTH, WIDTH), (WIDTH,)]
    projections = [torch.randn(shape) for shape in shapes]
    norms = [torch.rand(WIDTH), torch.randn(WIDTH), torch.rand(WIDTH), torch.randn(WIDTH)]
    inner = [torch.randn(shape) for shape in [(16, WIDTH), (16,), (WIDTH, 16), (WIDTH,)]]

    def call(x: torch.Tensor, *mask: Any) -> torch.Tensor:
        weights = [item.to(x.dtype) for item in (*projections, *norms, *inner)]
        how = (use_gelu, norm_first, 1e-5)
        found: torch.Tensor = OPERATOR(x, WIDTH, HEADS, *weights[:4], *how, *weights[4:], *mask)
        return found

    return call


def _masks() -> list[torch.Tensor]:
    """One of each type; the second hides all keys of a text."""
    padding = torch.zeros(BATCH, LENGTH, dtype=torch.bool)
    padding[0, 3:] = padding[1] = True
    full = torch.zeros(BATCH, HEADS, LENGTH, LENGTH, dtype=torch.bool)
    full[2, 1, :, 4] = True
    return [torch.ones(LENGTH, LENGTH).triu(1).bool(), padding, full]


@pytest.mark.parametrize("use_gelu", [True, False])
@pytest.mark.parametrize("norm_first", [True, False])
def test_masks_of_each_type(use_gelu: bool, norm_first: bool) -> None:
    layer, x = _layer(use_gelu=use_gelu, norm_first=norm_first), torch.randn(BATCH, LENGTH, WIDTH)
    for mask in ((), *((mask, at) for at, mask in enumerate(_masks()))):
        torch.testing.assert_close(
            compiled(layer)(x, *mask), layer(x, *mask), rtol=1e-4, atol=1e-4, equal_nan=True
        )


@pytest.mark.parametrize("averaged", [True, False])
def test_attention_with_its_weights(averaged: bool) -> None:
    x = torch.randn(BATCH, LENGTH, WIDTH)
    shapes = [(3 * WIDTH, WIDTH), (3 * WIDTH,), (WIDTH, WIDTH), (WIDTH,)]
    weights = [torch.randn(shape) for shape in shapes]

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *how: Any) -> Any:
        return ATTENTION(q, k, v, WIDTH, HEADS, *weights, *how)

    cases: list[tuple[Any, ...]] = [
        *((*inputs, None, True, averaged) for inputs in ((x, x, x), (x, x * 2, x * 2))),
        (x, x * 2, x + 1, None, True, averaged),
        *((x, x, x, mask, True, averaged, at) for at, mask in enumerate(_masks())),
        *((x, x, x, mask, False, averaged, at) for at, mask in enumerate(_masks())),
    ]
    for case in cases:
        (found, attended), (expected, promised) = compiled(attend)(*case), attend(*case)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4, equal_nan=True)
        if promised is not None:
            torch.testing.assert_close(attended, promised, rtol=1e-4, atol=1e-4, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_element_types(dtype: torch.dtype) -> None:
    layer, x = _layer(use_gelu=True, norm_first=False), torch.randn(BATCH, LENGTH, WIDTH).to(dtype)
    bound = {"rtol": 5e-2, "atol": 5e-2} if dtype == torch.bfloat16 else {}
    torch.testing.assert_close(compiled(layer)(x), layer(x), **bound)


@pytest.mark.filterwarnings("ignore:Converting mask without torch.bool dtype")
def test_a_mask_of_numbers_hides_where_it_is_not_0() -> None:
    layer, x = _layer(use_gelu=True, norm_first=True), torch.randn(BATCH, LENGTH, WIDTH)
    mask = torch.zeros(LENGTH, LENGTH).masked_fill(torch.ones(LENGTH, LENGTH).triu(1).bool(), -1e9)
    torch.testing.assert_close(compiled(layer)(x, mask, 0), layer(x, mask, 0))


@pytest.mark.parametrize("is_masked", [False, True])
def test_short_texts_do_not_take_the_program_of_the_longest(is_masked: bool) -> None:
    encoder = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), 2, enable_nested_tensor=False
    ).eval()
    run = compiled(encoder)
    with torch.no_grad():
        for length in (700, 1000, *(40, 60, 44, 50) * 3):
            x = torch.randn(2, length, 16)
            mask = (torch.arange(length) > length - 7).expand(2, -1) if is_masked else None
            expected = encoder(x, src_key_padding_mask=mask)
            found = run(x, src_key_padding_mask=mask)
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert len(compiled_graphs()) == 3
