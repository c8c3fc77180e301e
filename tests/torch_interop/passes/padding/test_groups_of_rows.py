"""Products of groups of rows, of which any number comes: the experts of a mixture."""

from typing import Any

import pytest
import torch
import transformers

from pjrt_bridge.torch_interop import compiled_graphs
from tests.torch_interop.helpers import assert_same
from tests.torch_interop.passes.padding.rows import SIZE, assert_padding_changes_nothing

N = SIZE
torch.manual_seed(0)
ENDS = torch.tensor([2, 2, 4], dtype=torch.int32)


def test_products_of_rows_and_of_columns() -> None:
    def function(x: torch.Tensor, y: torch.Tensor, w: torch.Tensor, ends: torch.Tensor) -> Any:
        x, y, w = (item.bfloat16() for item in (x, y, w))
        return (
            torch._grouped_mm(x, w, offs=ends)[:4],
            torch._grouped_mm(x.t(), y, offs=ends),
        )

    args = torch.randn(N, 8), torch.randn(N, 16), torch.randn(3, 8, 16), ENDS
    assert_padding_changes_nothing(function, *args)


@pytest.mark.usefixtures("fresh")
def test_a_mixture_is_trained_on_texts_of_any_length() -> None:
    config = transformers.MixtralConfig(
        vocab_size=64,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        num_local_experts=4,
    )
    model = transformers.MixtralForCausalLM(config)
    run = torch.compile(
        lambda words: model(words, labels=words, use_cache=False).loss, backend="pjrt"
    )
    for length in (5, 9, 30, 27, 25, 31, 12):
        words = torch.randint(0, 64, (2, length))
        found = []
        for one in (run, lambda words: model(words, labels=words, use_cache=False).loss):
            model.zero_grad()
            loss = one(words)
            loss.backward()
            found.append([loss.detach(), *(item.grad for item in model.parameters())])
        assert_same(*found, rtol=1e-4, atol=1e-5)
    assert len(compiled_graphs()) <= 10
    assert all(graph.on_device == len(graph.segments) for graph in compiled_graphs())
