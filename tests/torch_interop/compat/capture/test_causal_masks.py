"""Layers with masks stay in the graph, whether they are said to be causal or not."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from pjrt_bridge.torch_interop import compat
from tests.torch_interop.helpers import assert_same


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize("is_training", [False, True])
@pytest.mark.parametrize("is_said", [False, True])
@pytest.mark.parametrize("is_causal", [False, True])
def test_few_graphs_serve_all_lengths(is_training: bool, is_said: bool, is_causal: bool) -> None:
    encoder = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(8, 2, 8, dropout=0.0, batch_first=True), 2
    )
    decoder = nn.TransformerDecoder(
        nn.TransformerDecoderLayer(8, 2, 8, dropout=0.0, batch_first=True), 2
    )
    model = nn.ModuleList([encoder, decoder]).train(is_training)
    known = is_causal if is_said else None

    def function(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = decoder(
            encoder(x, mask, is_causal=known), x, tgt_mask=mask, tgt_is_causal=known
        )
        return made

    run = torch.compile(function, backend="pjrt", fullgraph=True)
    before = compat.graphs_made()
    for length in (4, 7, 9, 12, 13, 20):
        mask = nn.Transformer.generate_square_subsequent_mask(length)
        x = torch.randn(3, length, 8)
        given = mask if is_causal else mask.mT.contiguous()
        results = []
        for call in (run, function):
            made = call(x, given)
            gradients = torch.autograd.grad(made.exp().sum(), model.parameters())
            results.append([made, *gradients])
        assert_same(*results, rtol=1e-4, atol=1e-4)
    assert 1 <= compat.graphs_made() - before <= 2
