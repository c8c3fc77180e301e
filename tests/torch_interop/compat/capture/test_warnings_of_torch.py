"""Functions of PyTorch that warn stay in the graph."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn

from pjrt_bridge.torch_interop import compat, compiled_graphs
from tests.torch_interop.helpers import assert_same


@pytest.mark.usefixtures("fresh")
def test_masks_of_two_types() -> None:
    model = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(8, 2, 8, dropout=0.0, batch_first=True), 2
    )
    run = torch.compile(model, backend="pjrt")
    before = compat.graphs_made()
    for length in (4, 7, 9, 12, 13, 20):
        x = torch.randn(3, length, 8)
        mask = nn.Transformer.generate_square_subsequent_mask(length)
        padding = torch.arange(length) >= torch.tensor([[length], [length - 1], [2]])
        results = []
        for call in (run, model):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                made = call(x, mask=mask, src_key_padding_mask=padding)
            results.append([made, *torch.autograd.grad(made.exp().sum(), model.parameters())])
        assert_same(*results, rtol=1e-4, atol=1e-4)
    assert 1 <= compat.graphs_made() - before <= 2
    assert all(part.placement == "device" for made in compiled_graphs() for part in made.segments)


_ATTENTION = nn.MultiheadAttention(4, 2, batch_first=True)
_TEXT = "mismatched key_padding_mask and attn_mask"


def _attention(x: torch.Tensor) -> torch.Tensor:
    masks = {"attn_mask": torch.zeros(3, 3), "key_padding_mask": torch.zeros(1, 3) > 0}
    made: torch.Tensor = _ATTENTION(x, x, x, **masks, need_weights=False)[0]
    return made


@pytest.mark.usefixtures("fresh")
def test_the_warning_is_given() -> None:
    run = torch.compile(_attention, backend="pjrt", fullgraph=True)
    x = torch.randn(1, 3, 4)
    with pytest.warns(UserWarning, match=_TEXT) as ours:
        found = run(x)
    with pytest.warns(UserWarning, match=_TEXT) as theirs:
        assert_same(found, _attention(x), rtol=1e-5, atol=1e-5)
    places = [
        {(one.filename, one.lineno) for one in several if _TEXT in str(one.message)}
        for several in (ours, theirs)
    ]
    assert places[0] == places[1]


@pytest.mark.usefixtures("fresh")
def test_an_error() -> None:
    run = torch.compile(_attention, backend="pjrt")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning, match=_TEXT):
            run(torch.randn(1, 3, 4))


@pytest.mark.usefixtures("fresh")
def test_warnings_of_others_end_the_graph() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        warnings.warn("of the user", stacklevel=1)
        return x + 1

    run = torch.compile(function, backend="pjrt")
    for _ in range(2):
        with pytest.warns(UserWarning, match="of the user"):
            run(torch.ones(2))
